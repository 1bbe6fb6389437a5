// W_ih x of a block's own units and sequences, of all steps, made by all of its threads before anything else, for calls so short
// that the launch of a product would take the host long beside them. INPUTS: elements of a row of x; 0 or undefined: nothing is
// compiled in, and the kernel is given the product. BLOCK_THREADS: threads of the block.
// Rows of x are columns of the product, up to 16 at once, so that weights are read once where there are no more. 8 warps multiply
// the same rows of weights, each by its share of the elements; where there are as many threads 8 more multiply others meanwhile.
// Sums lie in shared memory that the kernel has nothing in yet.
#pragma once
#include "few_columns.cuh"
#include "persistent_step.cuh"

#if INPUTS
#define OF_INPUTS const storage *x, index x_step, index x_sequence, const storage *weight_ih,
#ifndef BLOCK_THREADS
#define BLOCK_THREADS THREADS
#endif
#define TEAMS (BLOCK_THREADS / THREADS)                      // of 8 warps
#define OWN_ROW_TILES ((GATES * UNITS + 15) / 16)  // of the block

// x [T, B, INPUTS], element (t, b, i) at t * step + b * sequence + i; weight [G*H, INPUTS].
struct Factors {
    const storage* x;
    index step, sequence;
    const storage* weight;
};

// How many row tiles a team multiplies at once by so many column tiles: of those that it has as many as registers have room for,
// which are 128 where threads are most. SLICES: that a lane reads at once.
template <int COLUMNS> struct Portion {
    static constexpr int OWN = (OWN_ROW_TILES + TEAMS - 1) / TEAMS, MOST = 4, ROWS = MOST < OWN ? MOST : OWN;
    static constexpr int SLICES = SPLIT && ROWS * COLUMNS > 4 ? 1 : 2;
};
#define MOST_COLUMNS 2  // tiles at once

// Of `some` rows of x from the first-th on: row t * sequences + s is of step t and the s-th of the block's own `sequences`.
template <int COLUMNS>
__device__ inline void multiply_inputs(const Factors& factors, const Arrays& arrays, const Thread& me, int sequences, int first,
                                       int some) {
    constexpr int ROWS = Portion<COLUMNS>::ROWS, SOME_ROWS = TEAMS * ROWS * 16;
    static_assert(sizeof(Share<ROWS, COLUMNS>) * TEAMS * WARPS <= SHARED_BYTES, "shared_bytes_of");
    Share<ROWS, COLUMNS>(*shares)[WARPS] = (Share<ROWS, COLUMNS>(*)[WARPS])dynamic_smem();
    const int team = threadIdx.x / THREADS, warp = threadIdx.x / 32 % WARPS, lane = threadIdx.x % 32;
    MatrixRow columns[COLUMNS];
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        const int i = n * 8 + lane / 4, row = first + i, b = me.first_sequence + row % sequences;
        columns[n] = {factors.x + row / sequences * factors.step + b * factors.sequence, i < some};
    }
#pragma unroll 1
    for (int tile = 0; tile < OWN_ROW_TILES; tile += TEAMS * ROWS) {
        if (team < TEAMS)
            multiply_share<INPUTS, Portion<COLUMNS>::SLICES>(
                shares[team][warp], warp, lane,
                [&](int r) { return row_of(factors.weight, me, (tile + team * ROWS) * 16 + r, INPUTS); },
                [&](int n) { return columns[n]; });
        __syncthreads();
        for (int i = threadIdx.x; i < SOME_ROWS * some; i += BLOCK_THREADS) {
            const int local = i % SOME_ROWS, column = i / SOME_ROWS, row = first + column;
            const int r = tile * 16 + local, unit = me.first_unit + r / GATES;
            if (r >= GATES * UNITS || unit >= HIDDEN) continue;
            const index place = row / sequences * arrays.gates_step + (me.first_sequence + row % sequences) * arrays.gates_sequence;
            const float found = sum_of(shares[local / (ROWS * 16)], local % (ROWS * 16), column);
            ((storage*)arrays.gates)[place + r % GATES * HIDDEN + unit] = narrow(found);
        }
        __syncthreads();
    }
}

// By all threads; after it they have met, so that each sees what any of them wrote.
__device__ inline void multiply_inputs(const Factors& factors, const Arrays& arrays, int batch) {
    unsigned block = blockIdx.x;
    opaque(block);  // what follows from it takes no registers later
    const Thread me = {0, 0, 0, (int)(block % BLOCKS * UNITS), (int)(block / BLOCKS * TILES * WIDE), batch};
    const int sequences = min(TILES * WIDE, me.batch - me.first_sequence), rows = arrays.steps * sequences;
#pragma unroll 1
    for (int first = 0; first < rows; first += 8 * MOST_COLUMNS) {
        const int some = min(rows - first, 8 * MOST_COLUMNS);
        if (some <= 8) multiply_inputs<1>(factors, arrays, me, sequences, first, some);
        else multiply_inputs<MOST_COLUMNS>(factors, arrays, me, sequences, first, some);
    }
}
#else
#define OF_INPUTS
#endif
