// The columns of a product that a block has in shared memory, 8 sequences of them, and the product of its warps' weights with
// them: GROUPS of columns by groups of rows, a warp each, all of its ROW_TILES by a slice of columns at once.
#pragma once
#include "clear.cuh"
#include "resident.cuh"

// So many slices' split halves, and those of slices that come between them, may be in registers at once.
#define SLICES_AT_HAND ((3 + ROW_TILES - 1) / ROW_TILES)

// Of 8 sequences, so that what a block tells is in one stretch, and what 8 lanes read at once lies in different banks.
template <int SLICES> struct Eight {
    static constexpr int PIECES_EACH = SLICES * GROUPS * 4;  // pieces of a sequence
    storage at[PIECES_EACH][8][PIECE];
    __device__ const uint4& piece(int unit, int i) const { return ((const uint4*)at[unit / PIECE])[i]; }
    __device__ storage& of(unsigned unit, unsigned column) {
        return at[unit / PIECE][(column + unit / PIECE * 2) % 8][unit % PIECE];
    }
};
typedef Eight<SLICES_EACH> States;

// Those of a thread, from its warp's group's first slice on: slices are 32 pieces apart.
template <int SLICES> __device__ inline const uint4* own_columns(const Eight<SLICES>& all, int group, int lane) {
    const int g = lane / 4, t = lane % 4;
    return (const uint4*)all.at[group * SLICES * 4 + t][(g + 2 * t) % 8];
}

// By its weights' turns from FIRST on.
template <int FIRST, int SLICES>
__device__ inline void add_columns(Sums (&sums)[ROW_TILES], Resident& weights, const uint4* columns) {
    weights.each_turn<FIRST, FIRST + SLICES>([&](int turn, auto part) {
        const int slice = turn - FIRST;
        if (SPLIT && slice % SLICES_AT_HAND == 0) scheduling_fence(columns + slice * 32);
        const Columns of_slice = columns_of(columns[slice * 32]);
#pragma unroll
        for (int i = 0; i < ROW_TILES; i++) add_slice(sums[i], part(i), of_slice);
    });
}
