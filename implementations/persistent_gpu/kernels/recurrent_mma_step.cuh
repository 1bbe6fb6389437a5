// One step of a tile of sequences in a block of persistent_gpu, independent of how blocks exchange states: the block's part of
// the recurrent product, on the tensor cores, for the gates of its own units (pointwise_forward.cuh). The MMA warps are
// K_PARTITIONS partitions of W_hh's K by groups of rows. Their sums go through shared memory to the pointwise threads.
#pragma once
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/rnn/pointwise_forward.cuh"
#include "ecornn/rnn/rnn_cell.cuh"
#include "b_tile.cuh"
#include "vector_load.cuh"
#include "warp_mma.cuh"

// Row tiles of a warp; K tiles of W_hh in a K partition, in the order of units.
constexpr int M_TILES_PER_WARP = ceil_div(GATES * UNITS * K_PARTITIONS, 16 * WARPS);
constexpr int RECURRENT_K_TILES = ceil_div(UNITS * BLOCKS, K_TILE * K_PARTITIONS);

// Config of tiles of 8 sequences: adjacent pointwise threads have adjacent units of a sequence.
template <int NUM_THREADS> struct AdjacentUnitsConfig {
    static constexpr int TILE_BATCH = 8, NUM_POINTWISE_THREADS = NUM_THREADS;
    static constexpr int STATES_PER_THREAD = ceil_div(UNITS * TILE_BATCH, NUM_THREADS);
    static constexpr bool HAS_FUSED_INPUTS = false;
    __device__ static int unit_of_state(int thread, int state) { return (thread + state * NUM_THREADS) % UNITS; }
    __device__ static int sequence_of_state(int thread, int state) { return (thread + state * NUM_THREADS) / UNITS; }
};

// Sums of a block in shared memory, of each K partition, for a tile of TILE_BATCH sequences, in STAGES stages that alternate.
// ROWS, COLUMNS: units and sequences that there is room for: all of the MMA warps, or UNITS and only sequences that are used.
// Rows are padded by 4, so that units are in different banks.
template <int STAGES, int TILE_BATCH = 8, int ROWS = M_TILES_PER_WARP * 16 * WARPS / K_PARTITIONS / GATES + 1,
          int COLUMNS = TILE_BATCH>
struct SumStorage {
    static constexpr bool IS_COMPACT = ROWS == UNITS;
    static constexpr int SUMS_PER_UNIT = GATES == 1 ? 1 : 4;  // of a sequence, padded
    float data[STAGES][K_PARTITIONS][ROWS][COLUMNS * SUMS_PER_UNIT + 4];

    // Stores a warp's accumulators, to be read after a barrier. acc_of(i, n): of its i-th rows and the n-th 8 sequences.
    template <typename Thread, typename AccOf> __device__ void store(int stage, const Thread& thread, AccOf acc_of) {
#pragma unroll
        for (int i = 0; i < M_TILES_PER_WARP * 2; i++) {
            const int r = accumulator_row(thread, i);
            if (IS_COMPACT && r >= GATES * UNITS) continue;
            float* place = ptr(stage, thread, r);
#pragma unroll
            for (int n = 0; n < TILE_BATCH / 8; n++) {
                const Accumulator& acc = acc_of(i / 2, n);
                const int column = n * 8 + thread.lane % 4 * 2;
                if (!IS_COMPACT || column < COLUMNS) place[n * 8 * SUMS_PER_UNIT] = acc.data[i % 2 * 2];
                if (!IS_COMPACT || column + 1 < COLUMNS) place[(n * 8 + 1) * SUMS_PER_UNIT] = acc.data[i % 2 * 2 + 1];
            }
        }
    }

    // Row of a warp's i-th accumulators.
    template <typename Thread> __device__ static int accumulator_row(const Thread& thread, int i) {
        return (thread.warp / K_PARTITIONS * M_TILES_PER_WARP * 2 + i) * 8 + thread.lane / 4;
    }
    // Where a warp's sums of row r are, of the thread's first sequence.
    template <typename Thread> __device__ float* ptr(int stage, const Thread& thread, int r) {
        return &data[stage][thread.warp % K_PARTITIONS][r / GATES][thread.lane % 4 * 2 * SUMS_PER_UNIT + r % GATES];
    }

    // A thread's sums of a state, over all K partitions.
    template <typename Thread> __device__ GateVector reduce(int stage, const Thread& thread, int s) const {
        GateVector all[2];  // of even and odd partitions, so that fewer additions wait for each other
#pragma unroll
        for (int group = 0; group < K_PARTITIONS; group++) {
            const float* sums = &data[stage][group][thread.local_unit(s)][thread.sequence_in_tile(s) * SUMS_PER_UNIT];
            const GateVector vector = GATES == 1 ? GateVector{{*sums}} : *(const GateVector*)sums;
#pragma unroll
            for (int i = 0; i < 4; i++)
                all[group % 2].data[i] = group < 2 ? vector.data[i] : all[group % 2].data[i] + vector.data[i];
        }
#pragma unroll
        for (int i = 0; i < 4 && K_PARTITIONS > 1; i++) all[0].data[i] += all[1].data[i];
        return all[0];
    }
};

// Row r of this block's product, of weights with that many columns.
template <typename Thread>
__device__ inline MatrixRow weight_row_ptr(const scalar_t* weight, const Thread& thread, int r, int columns) {
    const int unit = thread.first_unit + r / GATES;
    return {weight + ((index)(r % GATES) * HIDDEN + unit) * columns, r < GATES * UNITS && unit < HIDDEN};
}

// k_tiles: of a K partition.
template <typename Thread>
__device__ inline AFragment load_a_fragment(const scalar_t* weight, const Thread& thread, int s, int i,
                                            int k_tiles = RECURRENT_K_TILES, int columns = HIDDEN) {
    const int r = (thread.warp / K_PARTITIONS * M_TILES_PER_WARP + i) * 16 + thread.lane / 4;
    const int k = (thread.warp % K_PARTITIONS * k_tiles + s) * K_TILE + thread.lane % 4 * ELEMENTS_PER_VECTOR;
    return make_a_fragment(load_vector(weight_row_ptr(weight, thread, r, columns), k, columns),
                           load_vector(weight_row_ptr(weight, thread, r + 8, columns), k, columns));
}

// Adds the block's part of the product with states to `acc` and stores it, to be read after a barrier. b_ptr: the thread's part
// of the states.
template <typename Sums, typename Weights, typename Thread>
__device__ inline void mma_recurrent(Sums& sums, int buffer, Weights& weights, const Thread& thread, const uint4* b_ptr,
                                     Accumulator (&acc)[M_TILES_PER_WARP]) {
    mma_mainloop<0, RECURRENT_K_TILES>(acc, weights, b_ptr);
    sums.store(buffer, thread, [&](int i, int) -> const Accumulator& { return acc[i]; });
}
template <typename Sums, typename Weights, typename Thread>
__device__ inline void mma_recurrent(Sums& sums, int buffer, Weights& weights, const Thread& thread, const uint4* b_ptr) {
    Accumulator acc[M_TILES_PER_WARP] = {};
    mma_recurrent(sums, buffer, weights, thread, b_ptr, acc);
}
