// A product of weights, rows of 16 of them a warp, and 8 columns, by mma.sync, summed in float32: of 16 bits, TF32 of float32
// (whose further bits the hardware leaves out), or SPLIT: float32 in two parts of TF32 each, three products, whose sums are added
// outside of the tensor cores, as those do not round to nearest.
// Thread (g, t) = (lane / 4, lane % 4) holds, of weights, rows g and g + 8, 16 bytes of each from 16 t of a slice of 64; of
// columns, 16 bytes of column g from 16 t. Which element is which operand's is free as long as it is the same for both.
#pragma once
#include "storage.cuh"

#define PIECE (16 / (int)sizeof(storage))  // elements of 16 bytes
#define SLICE (4 * PIECE)
#define OF_TF32 (sizeof(storage) == 4 && !SPLIT)

// Of rows: (g, column 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
struct Sums {
    float at[4];
};

struct Slice {
    uint4 upper, lower;  // of rows g and g + 8
};

#include "mma.cuh"

__device__ inline void add_once(Sums& sums, const Slice& weights, const uint4& columns) {
    add_product(sums, weights.upper.x, weights.lower.x, weights.upper.y, weights.lower.y, columns.x, columns.y);
    add_product(sums, weights.upper.z, weights.lower.z, weights.upper.w, weights.lower.w, columns.z, columns.w);
}

#if SPLIT
// To nearest, as many bits as TF32 has. Weights' parts are taken anew in every step: there is no room to keep them.
__device__ inline unsigned coarse(unsigned x) {
    again(x);
    return (x + 0x1000) & 0xffffe000;
}
__device__ inline unsigned rest(unsigned x, unsigned part) { return __float_as_uint(__uint_as_float(x) - __uint_as_float(part)); }
__device__ inline uint4 coarse(const uint4& x) { return {coarse(x.x), coarse(x.y), coarse(x.z), coarse(x.w)}; }
__device__ inline uint4 rest(const uint4& x, const uint4& part) {
    return {rest(x.x, part.x), rest(x.y, part.y), rest(x.z, part.z), rest(x.w, part.w)};
}

// Two parts of columns; of an infinite element the first says all, and weights' second parts are not to meet it.
struct Columns {
    uint4 first, finite, second;
};
__device__ inline unsigned unless_infinite(unsigned x, unsigned found) { return (x & 0x7fffffff) == 0x7f800000 ? 0 : found; }
__device__ inline uint4 unless_infinite(const uint4& x, const uint4& found) {
    return {unless_infinite(x.x, found.x), unless_infinite(x.y, found.y), unless_infinite(x.z, found.z), unless_infinite(x.w, found.w)};
}
__device__ inline Columns columns_of(const uint4& x) {
    const uint4 first = coarse(x);
    return {first, unless_infinite(x, first), unless_infinite(x, rest(x, first))};
}

// With several times 8 columns.
template <int SEVERAL>
__device__ inline void add_slice(Sums (&sums)[SEVERAL], const Slice& weights, const Columns (&columns)[SEVERAL]) {
    const Slice first = {coarse(weights.upper), coarse(weights.lower)};
    const Slice second = {rest(weights.upper, first.upper), rest(weights.lower, first.lower)};
#pragma unroll
    for (int n = 0; n < SEVERAL; n++) {
        Sums own = {};
        add_once(own, second, columns[n].finite);
        add_once(own, first, columns[n].second);
        add_once(own, first, columns[n].first);
#pragma unroll
        for (int i = 0; i < 4; i++) sums[n].at[i] += own.at[i];
    }
}
#else
typedef uint4 Columns;
__device__ inline Columns columns_of(const uint4& x) { return x; }
template <int SEVERAL>
__device__ inline void add_slice(Sums (&sums)[SEVERAL], const Slice& weights, const Columns (&columns)[SEVERAL]) {
#pragma unroll
    for (int n = 0; n < SEVERAL; n++) add_once(sums[n], weights, columns[n]);
}
#endif

__device__ inline void add_slice(Sums& sums, const Slice& weights, const Columns& columns) {
    add_slice((Sums(&)[1])sums, weights, (const Columns(&)[1])columns);
}
