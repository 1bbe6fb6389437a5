// The input GEMM: W_ih x of a block's own units and sequences, of all steps, by all of its threads before anything else. It is
// for calls so short that a launch of its own would take the host long. INPUTS, by a macro: elements of a row of x. Where it is
// 0 or undefined nothing is compiled in, and the product is an argument of the kernel. BLOCK_THREADS: threads of the block.
// Rows of x are columns of the product, up to 16 at once. So weights are read once where there are no more. 8 warps, a team,
// multiply the same rows of weights, each its K partition. A second team, in blocks of 512 threads, multiplies other rows at
// the same time. Partial sums are in shared memory that the kernel does not use yet.
#pragma once
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/ptx/smem.cuh"
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
constexpr int M_TILES_PER_BLOCK = ceil_div(GATES * UNITS, 16);
constexpr int MAX_N_TILES = 2;  // column tiles that are multiplied at once

// ROWS: row tiles that a team multiplies at once by COLUMNS column tiles, as many of its own as fit in registers, of which a
// thread has 128 in the largest blocks. BATCH_K_TILES: K tiles that a lane loads at once.
template <int WARP_TEAMS, int COLUMNS> struct SkinnyTile {
    static constexpr int TEAM_ROWS = ceil_div(M_TILES_PER_BLOCK, WARP_TEAMS), MAX_ROWS = 4;
    static constexpr int ROWS = MAX_ROWS < TEAM_ROWS ? MAX_ROWS : TEAM_ROWS;
    static constexpr int BATCH_K_TILES = USE_3XTF32 && ROWS * COLUMNS > 4 ? 1 : 2;
};

// Multiplies `count` rows of x from the first-th on: row t * sequences + s is of step t and the s-th of the block's own
// `sequences`.
template <int BLOCK_THREADS, int COLUMNS, typename Thread>
__device__ inline void input_gemm_columns(const DenseParams& params, const Thread& thread, int sequences, int first,
                                          int count) {
    constexpr int WARP_TEAMS = BLOCK_THREADS / THREADS;  // of 8 warps each
    typedef SkinnyTile<WARP_TEAMS, COLUMNS> Tile;
    constexpr int ROWS = Tile::ROWS, PASS_ROWS = WARP_TEAMS * ROWS * 16;
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
            skinny_mma<INPUTS, Tile::BATCH_K_TILES>(
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
template <typename Config, int BLOCK_THREADS> __device__ inline void input_gemm(const DenseParams& params) {
    constexpr int TILE_BATCH = Config::TILE_BATCH;
    unsigned block = blockIdx.x;
    opaque(block);  // what follows from it takes no registers later
    const ThreadCoords<Config> thread = {0, 0, 0, (int)(block % BLOCKS * UNITS), (int)(block / BLOCKS * TILES * TILE_BATCH),
                                 params.batch};
    const int sequences = min(TILES * TILE_BATCH, thread.batch - thread.first_sequence), rows = params.steps * sequences;
#pragma unroll 1
    for (int first = 0; first < rows; first += 8 * MAX_N_TILES) {
        const int count = min(rows - first, 8 * MAX_N_TILES);
        if (count <= 8) input_gemm_columns<BLOCK_THREADS, 1>(params, thread, sequences, first, count);
        else input_gemm_columns<BLOCK_THREADS, MAX_N_TILES>(params, thread, sequences, first, count);
    }
}
#else
template <typename Config, int BLOCK_THREADS> __device__ inline void input_gemm(const DenseParams&) {}
#endif
