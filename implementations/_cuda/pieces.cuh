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

// A row of a matrix, or the address where it would lie: only a row inside is read. A flag, since ptxas 13.0 may test a pointer
// before its null is there: CS2R, then a predicated write, then the test, five cycles after CS2R.
struct MatrixRow {
    const storage* start;
    bool is_inside;
};

// 16 bytes of a row of so many elements, from element k on: 0 beyond its end, and of a row that is not inside.
__device__ inline uint4 piece_at(const MatrixRow& row, int k, int elements = HIDDEN) {
    union {
        part_of_piece parts[16 / WIDTH];
        uint4 whole;
    } piece;
    piece.whole = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16 / WIDTH; i++) {
        const int first = k + i * (WIDTH / (int)sizeof(storage));
        if (row.is_inside && first < elements) piece.parts[i] = *(const part_of_piece*)(row.start + first);
    }
    return piece.whole;
}
