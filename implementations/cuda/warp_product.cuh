// A product of weights, rows of 16 of them a warp, and 8 columns, by mma.sync: 16 bits, summed in float32.
// Thread (g, t) = (lane / 4, lane % 4) holds, of weights, rows g and g + 8, 8 elements of each that follow each other from 8 t
// of a slice of 32; of columns, 8 elements of column g from 8 t. Which element is which operand's is free as long as it is the
// same for both: this way each is one access of 16 bytes.
#pragma once
#include "storage.cuh"

// Of rows: (g, column 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
struct Sums {
    float at[4];
};

struct Slice {
    uint4 upper, lower;  // of rows g and g + 8
};

#include "mma.cuh"

__device__ inline void add_slice(Sums& sums, const Slice& weights, const uint4& columns) {
    add_product(sums, weights.upper.x, weights.lower.x, weights.upper.y, weights.lower.y, columns.x, columns.y);
    add_product(sums, weights.upper.z, weights.lower.z, weights.upper.w, weights.lower.w, columns.z, columns.w);
}
