// The input GEMM: W_ih x of a block's own units and sequences, of all steps, by all of its threads before anything else. It is
// for calls so short that a launch of its own would take the host long. INPUTS: elements of a row of x. Where it is 0 or
// undefined nothing is compiled in, and the product is an argument of the kernel. BLOCK_THREADS: threads of the block.
// Rows of x are columns of the product, up to 16 at once. So weights are read once where there are no more. 8 warps, a team,
// multiply the same rows of weights, each its K partition. A second team, in blocks of 512 threads, multiplies other rows at
// the same time. Partial sums are in shared memory that the kernel does not use yet.
#pragma once
#include "skinny_gemm.cuh"
#include "recurrent_mma_step.cuh"

// Parameters of a forward kernel with dense weights: x [T, B, INPUTS], element (t, b, i) at t * x_step + b * x_sequence + i,
// and weight_ih [G*H, INPUTS], which are not read without INPUTS; weight_hh [G*H, H].
struct DenseParams : ForwardParams {
    const scalar_t* x;
    index x_step, x_sequence;
    const scalar_t *weight_ih, *weight_hh;
};

#if INPUTS
#ifndef BLOCK_THREADS
#define BLOCK_THREADS THREADS
#endif
#define WARP_TEAMS (BLOCK_THREADS / THREADS)  // of 8 warps each
#define M_TILES_PER_BLOCK ((GATES * UNITS + 15) / 16)

// ROWS: row tiles that a team multiplies at once by COLUMNS column tiles, as many of its own as fit in registers, of which a
// thread has 128 in the largest blocks. BATCH_K_TILES: K tiles that a lane loads at once.
template <int COLUMNS> struct SkinnyTile {
    static constexpr int TEAM_ROWS = (M_TILES_PER_BLOCK + WARP_TEAMS - 1) / WARP_TEAMS, MAX_ROWS = 4,
                         ROWS = MAX_ROWS < TEAM_ROWS ? MAX_ROWS : TEAM_ROWS;
    static constexpr int BATCH_K_TILES = USE_3XTF32 && ROWS * COLUMNS > 4 ? 1 : 2;
};
#define MAX_N_TILES 2  // column tiles that are multiplied at once

// Multiplies `count` rows of x from the first-th on: row t * sequences + s is of step t and the s-th of the block's own
// `sequences`.
template <int COLUMNS>
__device__ inline void input_gemm(const DenseParams& params, const ThreadCoords& thread, int sequences, int first,
                                  int count) {
    constexpr int ROWS = SkinnyTile<COLUMNS>::ROWS, PASS_ROWS = WARP_TEAMS * ROWS * 16;
    static_assert(sizeof(WarpPartials<ROWS, COLUMNS>) * WARP_TEAMS * WARPS <= SHARED_BYTES, "shared_bytes_of");
    WarpPartials<ROWS, COLUMNS>(*partials)[WARPS] = (WarpPartials<ROWS, COLUMNS>(*)[WARPS])dynamic_smem();
    const int team = threadIdx.x / THREADS, warp = threadIdx.x / 32 % WARPS, lane = threadIdx.x % 32;
    MatrixRow columns[COLUMNS];
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) {
        const int i = n * 8 + lane / 4, row = first + i, b = thread.first_sequence + row % sequences;
        columns[n] = {params.x + row / sequences * params.x_step + b * params.x_sequence, i < count};
    }
#pragma unroll 1
    for (int tile = 0; tile < M_TILES_PER_BLOCK; tile += WARP_TEAMS * ROWS) {
        if (team < WARP_TEAMS)
            skinny_mma<INPUTS, SkinnyTile<COLUMNS>::BATCH_K_TILES>(
                partials[team][warp], warp, lane,
                [&](int r) { return weight_row_ptr(params.weight_ih, thread, (tile + team * ROWS) * 16 + r, INPUTS); },
                [&](int n) { return columns[n]; });
        __syncthreads();
        for (int i = threadIdx.x; i < PASS_ROWS * count; i += BLOCK_THREADS) {
            const int local = i % PASS_ROWS, column = i / PASS_ROWS, row = first + column;
            const int r = tile * 16 + local, unit = thread.first_unit + r / GATES;
            if (r >= GATES * UNITS || unit >= HIDDEN) continue;
            const index place =
                row / sequences * params.gates_step + (thread.first_sequence + row % sequences) * params.gates_sequence;
            const float sum = reduce_partials(partials[local / (ROWS * 16)], local % (ROWS * 16), column);
            ((scalar_t*)params.gates)[place + r % GATES * HIDDEN + unit] = narrow(sum);
        }
        __syncthreads();
    }
}

// Computes the input product by all threads of the block, which synchronise at its end: each sees what any of them wrote.
__device__ inline void input_gemm(const DenseParams& params) {
    unsigned block = blockIdx.x;
    opaque(block);  // what follows from it takes no registers later
    const ThreadCoords thread = {0, 0, 0, (int)(block % BLOCKS * UNITS), (int)(block / BLOCKS * TILES * TILE_BATCH),
                                 params.batch};
    const int sequences = min(TILES * TILE_BATCH, thread.batch - thread.first_sequence), rows = params.steps * sequences;
#pragma unroll 1
    for (int first = 0; first < rows; first += 8 * MAX_N_TILES) {
        const int count = min(rows - first, 8 * MAX_N_TILES);
        if (count <= 8) input_gemm<1>(params, thread, sequences, first, count);
        else input_gemm<MAX_N_TILES>(params, thread, sequences, first, count);
    }
}
#else
__device__ inline void input_gemm(const DenseParams&) {}
#endif
