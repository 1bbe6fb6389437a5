// One step of a tile of 8 sequences, or of N_TILES times as many, in a block of persistent_gpu, independent of how blocks
// exchange states: the block's part of the recurrent product, on the tensor cores, and the gates of its own units
// (pointwise_forward.cuh). The first 8 warps multiply: K_PARTITIONS partitions of W_hh's K by groups of rows. Their sums go
// through shared memory to POINTWISE_THREADS threads, which are the pointwise warps, or in a grid the same threads.
#pragma once
#include "ecornn/rnn/rnn_cell.cuh"
#include "warp_mma.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)  // of the warps that multiply alone; BLOCK_THREADS are those of all roles
#ifndef K_TILES_PER_WARP
#define K_TILES_PER_WARP ((UNITS * BLOCKS + K_TILE * K_PARTITIONS - 1) / (K_TILE * K_PARTITIONS))
#define N_TILES 1
#define STATES_PER_THREAD ((UNITS * 8 + POINTWISE_THREADS - 1) / POINTWISE_THREADS)  // in a tile
// Unit and sequence of a thread's state; the sequence is TILE_BATCH or more where there is none.
__device__ inline int unit_of_state(int thread, int state) { return (thread + state * POINTWISE_THREADS) % UNITS; }
__device__ inline int sequence_of_state(int thread, int state) { return (thread + state * POINTWISE_THREADS) / UNITS; }
#endif
#define TILE_BATCH (8 * N_TILES)  // sequences of a tile
// Units and sequences of the sums in shared memory: all, or where that is scarce only those that are used.
#ifdef COMPACT_SUMS
#define SUM_ROWS UNITS
#define SUM_COLUMNS SEQUENCES
#else
#define COMPACT_SUMS 0
#define SUM_ROWS (M_TILES_PER_WARP * 16 * WARPS / K_PARTITIONS / GATES + 1)
#define SUM_COLUMNS TILE_BATCH
#endif
#define M_TILES_PER_WARP ((GATES * UNITS * K_PARTITIONS + 16 * WARPS - 1) / (16 * WARPS))

#ifndef LOADS_IN_FLIGHT
#define LOADS_IN_FLIGHT REG_FRAGMENTS
#endif

#include "b_tile.cuh"
#include "vector_load.cuh"
#include "ecornn/rnn/pointwise_forward.cuh"

// Row r of this block's product, of weights with that many columns.
__device__ inline MatrixRow weight_row_ptr(const scalar_t* weight, const ThreadCoords& thread, int r, int columns) {
    const int unit = thread.first_unit + r / GATES;
    return {weight + ((index)(r % GATES) * HIDDEN + unit) * columns, r < GATES * UNITS && unit < HIDDEN};
}

// k_tiles: of a K partition.
__device__ inline AFragment load_a_fragment(const scalar_t* weight, const ThreadCoords& thread, int s, int i,
                                            int k_tiles = K_TILES_PER_WARP, int columns = HIDDEN) {
    const int r = (thread.warp / K_PARTITIONS * M_TILES_PER_WARP + i) * 16 + thread.lane / 4;
    const int k = (thread.warp % K_PARTITIONS * k_tiles + s) * K_TILE + thread.lane % 4 * ELEMENTS_PER_VECTOR;
    return make_a_fragment(load_vector(weight_row_ptr(weight, thread, r, columns), k, columns),
                           load_vector(weight_row_ptr(weight, thread, r + 8, columns), k, columns));
}

// Row of a warp's i-th accumulators.
__device__ inline int accumulator_row(const ThreadCoords& thread, int i) {
    return (thread.warp / K_PARTITIONS * M_TILES_PER_WARP * 2 + i) * 8 + thread.lane / 4;
}

// Stores a warp's accumulators, to be read after a barrier. acc_of(i, n): of its i-th rows and the n-th 8 sequences.
template <typename AccOf>
__device__ inline void store_accumulators(PointwiseStorage& pointwise, int buffer, const ThreadCoords& thread, AccOf acc_of) {
#pragma unroll
    for (int i = 0; i < M_TILES_PER_WARP * 2; i++) {
        const int r = accumulator_row(thread, i);
        if (COMPACT_SUMS && r >= GATES * UNITS) continue;
        float* place = &pointwise.sums[buffer][thread.warp % K_PARTITIONS][r / GATES]
                                      [thread.lane % 4 * 2 * ACCUMULATORS_PER_UNIT + r % GATES];
#pragma unroll
        for (int n = 0; n < N_TILES; n++) {
            const Accumulator& acc = acc_of(i / 2, n);
            const int column = n * 8 + thread.lane % 4 * 2;
            if (!COMPACT_SUMS || column < SUM_COLUMNS) place[n * 8 * ACCUMULATORS_PER_UNIT] = acc.data[i % 2 * 2];
            if (!COMPACT_SUMS || column + 1 < SUM_COLUMNS) place[(n * 8 + 1) * ACCUMULATORS_PER_UNIT] = acc.data[i % 2 * 2 + 1];
        }
    }
}

// Adds the block's part of the product with states to `acc` and stores it, to be read after a barrier. b_ptr: the thread's part
// of the states.
__device__ inline void mma_recurrent(PointwiseStorage& pointwise, int buffer, ResidentWeights& weights,
                                     const ThreadCoords& thread, const uint4* b_ptr, Accumulator (&acc)[M_TILES_PER_WARP]) {
    mma_mainloop<0, K_TILES_PER_WARP>(acc, weights, b_ptr);
    store_accumulators(pointwise, buffer, thread, [&](int i, int) -> const Accumulator& { return acc[i]; });
}
__device__ inline void mma_recurrent(PointwiseStorage& pointwise, int buffer, ResidentWeights& weights,
                                     const ThreadCoords& thread, const uint4* b_ptr) {
    Accumulator acc[M_TILES_PER_WARP] = {};
    mma_recurrent(pointwise, buffer, weights, thread, b_ptr, acc);
}
