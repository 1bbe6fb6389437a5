// Vector loads: 16 bytes of a row of weights, LOAD_BYTES bytes at a time, as many as every row's start and end are multiples
// of.
#pragma once
#include "warp_mma.cuh"

#if LOAD_BYTES == 16
typedef uint4 load_t;
#elif LOAD_BYTES == 8
typedef uint2 load_t;
#elif LOAD_BYTES == 4
typedef unsigned load_t;
#else
typedef unsigned short load_t;
#endif

// A row of a matrix, or the address where it would be: only a row inside is read. A flag, since ptxas 13.0 may test a pointer
// before its null is written: CS2R, then a predicated write, then the test, five cycles after CS2R.
struct MatrixRow {
    const scalar_t* start;
    bool is_inside;
};

// Loads 16 bytes of a row of `elements` elements, from element k on: 0 beyond its end, and of a row that is not inside.
__device__ inline uint4 load_vector(const MatrixRow& row, int k, int elements = HIDDEN) {
    union {
        load_t loads[16 / LOAD_BYTES];
        uint4 all;
    } vector;
    vector.all = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16 / LOAD_BYTES; i++) {
        const int first = k + i * (LOAD_BYTES / (int)sizeof(scalar_t));
        if (row.is_inside && first < elements) vector.loads[i] = *(const load_t*)(row.start + first);
    }
    return vector.all;
}
