// One step of a tile of 8 sequences, or of ABREAST times as many, in a block of persistent_gpu, whatever way the blocks tell each
// other of it: the block's part of the product, on the tensor cores, and the gates of its own units (gate_step.cuh). Sums go from
// the first 8 warps, which are GROUPS of columns of W_hh by groups of rows, through shared memory to GATE_THREADS threads.
#pragma once
#include "recurrent_gates.cuh"
#include "warp_product.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#ifndef SLICES_EACH
#define SLICES_EACH ((UNITS * BLOCKS + SLICE * GROUPS - 1) / (SLICE * GROUPS))  // of columns, of a group of warps
#define ABREAST 1
#define STATES ((UNITS * 8 + GATE_THREADS - 1) / GATE_THREADS)  // of a thread in a tile
// Of a thread's states the unit and the sequence, WIDE or more where there is none.
__device__ inline int own_unit(int thread, int state) { return (thread + state * GATE_THREADS) % UNITS; }
__device__ inline int own_column(int thread, int state) { return (thread + state * GATE_THREADS) / UNITS; }
#endif
#define WIDE (8 * ABREAST)  // sequences of a tile
// How many units and sequences there is room for among the sums: for all, or where room is scarce only for those that matter.
#ifdef SCARCE
#define SUM_UNITS UNITS
#define SUM_COLUMNS SEQUENCES
#else
#define SCARCE 0
#define SUM_UNITS (ROW_TILES * 16 * WARPS / GROUPS / GATES + 1)
#define SUM_COLUMNS WIDE
#endif
#define ROW_TILES ((GATES * UNITS * GROUPS + 16 * WARPS - 1) / (16 * WARPS))  // of a warp

#ifndef READ_AT_ONCE
#define READ_AT_ONCE HELD
#endif

#include "columns.cuh"
#include "pieces.cuh"
#include "gate_step.cuh"

// Row r of this block's product: of weights of so many columns, and among the sums.
__device__ inline MatrixRow row_of(const storage* weight, const Thread& me, int r, int columns) {
    const int unit = me.first_unit + r / GATES;
    return {weight + ((index)(r % GATES) * HIDDEN + unit) * columns, r < GATES * UNITS && unit < HIDDEN};
}

// slices: of columns, that a group of warps has.
__device__ inline Slice part_of(const storage* weight, const Thread& me, int s, int i, int slices = SLICES_EACH,
                                int columns = HIDDEN) {
    const int r = (me.warp / GROUPS * ROW_TILES + i) * 16 + me.lane / 4;
    const int k = (me.warp % GROUPS * slices + s) * SLICE + me.lane % 4 * PIECE;
    return slice_of(piece_at(row_of(weight, me, r, columns), k, columns), piece_at(row_of(weight, me, r + 8, columns), k, columns));
}

// Of a warp's i-th sums the row.
__device__ inline int sums_row(const Thread& me, int i) { return (me.warp / GROUPS * ROW_TILES * 2 + i) * 8 + me.lane / 4; }

// A warp's sums, to be met by the block before they are read. sums_of(i, n): of its i-th rows and the n-th 8 sequences.
template <typename SumsOf> __device__ inline void put(Steps& steps, int turn, const Thread& me, SumsOf sums_of) {
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        const int r = sums_row(me, i);
        if (SCARCE && r >= GATES * UNITS) continue;
        float* place = &steps.sums[turn][me.warp % GROUPS][r / GATES][me.lane % 4 * 2 * PER + r % GATES];
#pragma unroll
        for (int n = 0; n < ABREAST; n++) {
            const Sums& sums = sums_of(i / 2, n);
            const int column = n * 8 + me.lane % 4 * 2;
            if (!SCARCE || column < SUM_COLUMNS) place[n * 8 * PER] = sums.at[i % 2 * 2];
            if (!SCARCE || column + 1 < SUM_COLUMNS) place[(n * 8 + 1) * PER] = sums.at[i % 2 * 2 + 1];
        }
    }
}

// The block's part of the product with states, of which `columns` are the thread's, added to `sums`, to be met by the block
// before it is read.
__device__ inline void multiply(Steps& steps, int turn, Resident& weights, const Thread& me, const uint4* columns,
                                Sums (&sums)[ROW_TILES]) {
    add_columns<0, SLICES_EACH>(sums, weights, columns);
    put(steps, turn, me, [&](int i, int) -> const Sums& { return sums[i]; });
}
__device__ inline void multiply(Steps& steps, int turn, Resident& weights, const Thread& me, const uint4* columns) {
    Sums sums[ROW_TILES] = {};
    multiply(steps, turn, weights, me, columns, sums);
}
