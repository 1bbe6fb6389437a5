// 16 bytes of a row of weights, read WIDTH bytes at a time, as many as every row's start and end are multiples of.
#pragma once
#include "warp_product.cuh"

#if WIDTH == 16
typedef uint4 part_of_piece;
#elif WIDTH == 8
typedef uint2 part_of_piece;
#elif WIDTH == 4
typedef unsigned part_of_piece;
#else
typedef unsigned short part_of_piece;
#endif

// at(i): where those from element i on are, null where there are none.
template <typename At> __device__ inline uint4 piece_of(At at) {
    union {
        part_of_piece parts[16 / WIDTH];
        uint4 whole;
    } found;
    found.whole = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16 / WIDTH; i++)
        if (const storage* place = at(i * (WIDTH / (int)sizeof(storage)))) found.parts[i] = *(const part_of_piece*)place;
    return found.whole;
}

// From element k on of a row of so many, 0 where there is none; of no row nothing.
__device__ inline uint4 piece_at(const storage* row, int k, int elements = HIDDEN) {
    return piece_of([&](int i) { return row && k + i < elements ? row + k + i : nullptr; });
}
