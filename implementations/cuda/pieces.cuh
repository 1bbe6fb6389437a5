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

// From element k on of a row of HIDDEN, 0 where there is none; of no row nothing.
__device__ inline uint4 piece_at(const storage* row, int k) {
    union {
        part_of_piece parts[16 / WIDTH];
        uint4 whole;
    } found;
    found.whole = {0, 0, 0, 0};
    constexpr int each = WIDTH / (int)sizeof(storage);
#pragma unroll
    for (int i = 0; i < 16 / WIDTH; i++)
        if (row && k + i * each < HIDDEN) found.parts[i] = *(const part_of_piece*)(row + k + i * each);
    return found.whole;
}
