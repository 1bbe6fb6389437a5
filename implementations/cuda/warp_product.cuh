// A product of weights, rows of 16 of them a warp, and 8 columns, by mma.sync, summed in float32: of 16 bits, TF32 of float32
// (whose further bits the hardware leaves out), or SPLIT: float32 in two parts of TF32 each, three products, whose sums are added
// outside of the tensor cores, as those do not round to nearest. Weights are split in every step, or once by a kernel that has room
// for both halves.
// Thread (g, t) = (lane / 4, lane % 4) holds, of weights, rows g and g + 8, 16 bytes of each from 16 t of a slice of 64; of
// columns, 16 bytes of column g from 16 t. Which element is which operand's is free as long as it is the same for both.
#pragma once
#include "again.cuh"
#include "storage.cuh"

#define PIECE (16 / (int)sizeof(storage))  // elements of 16 bytes
#define SLICE (4 * PIECE)
#define LARGEST 3.40282347e38f
#define OF_TF32 (sizeof(storage) == 4 && !SPLIT)

// Of rows: (g, column 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
struct Sums {
    float at[4];
};

// As a product takes them, so that what comes from memory needs no moves: two words of row g and two of g + 8 by turns, then two
// more of each.
struct Slice {
    uint4 left, right;
};
__device__ inline Slice slice_of(const uint4& upper, const uint4& lower) {
    return {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
}

#include "mma.cuh"

__device__ inline void add_once(Sums& sums, const Slice& weights, const uint4& columns) {
    add_product(sums, weights.left.x, weights.left.y, weights.left.z, weights.left.w, columns.x, columns.y);
    add_product(sums, weights.right.x, weights.right.y, weights.right.z, weights.right.w, columns.z, columns.w);
}

#if SPLIT
// To nearest, as many bits as TF32 has.
__device__ inline unsigned coarse(unsigned x) {
    opaque(x);
    return (x + 0x1000) & 0xffffe000;
}
__device__ inline unsigned rest(unsigned x, unsigned part) { return __float_as_uint(__uint_as_float(x) - __uint_as_float(part)); }
__device__ inline uint4 coarse(const uint4& x) { return {coarse(x.x), coarse(x.y), coarse(x.z), coarse(x.w)}; }
__device__ inline uint4 rest(const uint4& x, const uint4& part) {
    return {rest(x.x, part.x), rest(x.y, part.y), rest(x.z, part.z), rest(x.w, part.w)};
}

// Two parts of columns. Of an infinite element the second says all, which meets the weights' first parts alone: another of theirs
// may be 0, or of the other sign.
struct Columns {
    uint4 first, second;
};
__device__ inline unsigned unless_infinite(unsigned x) { return fabsf(__uint_as_float(x)) > LARGEST ? 0 : x; }
__device__ inline uint4 unless_infinite(const uint4& x) {
    return {unless_infinite(x.x), unless_infinite(x.y), unless_infinite(x.z), unless_infinite(x.w)};
}
__device__ inline Columns columns_of(const uint4& x) {
    const uint4 first = unless_infinite(coarse(x));
    return {first, rest(x, first)};
}

// Two parts of weights: found anew in every step, or kept where there is room for both.
struct Halves {
    Slice first, second;
};
__device__ inline Slice coarse(const Slice& x) { return {coarse(x.left), coarse(x.right)}; }
__device__ inline Slice rest(const Slice& x, const Slice& part) { return {rest(x.left, part.left), rest(x.right, part.right)}; }
__device__ inline Halves halves_of(const Slice& x) {
    const Slice first = coarse(x);
    return {first, rest(x, first)};
}

// With several times 8 columns.
template <int SEVERAL>
__device__ inline void add_slice(Sums (&sums)[SEVERAL], const Halves& weights, const Columns (&columns)[SEVERAL]) {
#pragma unroll
    for (int n = 0; n < SEVERAL; n++) {
        Sums own = {};
        add_once(own, weights.second, columns[n].first);
        add_once(own, weights.first, columns[n].second);
        add_once(own, weights.first, columns[n].first);
#pragma unroll
        for (int i = 0; i < 4; i++) sums[n].at[i] += own.at[i];
    }
}
#else
typedef uint4 Columns;
typedef Slice Halves;
__device__ inline Columns columns_of(const uint4& x) { return x; }
__device__ inline Halves halves_of(const Slice& x) { return x; }
template <int SEVERAL>
__device__ inline void add_slice(Sums (&sums)[SEVERAL], const Halves& weights, const Columns (&columns)[SEVERAL]) {
#pragma unroll
    for (int n = 0; n < SEVERAL; n++) add_once(sums[n], weights, columns[n]);
}
#endif

__device__ inline void add_slice(Sums& sums, const Slice& weights, const Columns& columns) {
    add_slice((Sums(&)[1])sums, halves_of(weights), (const Columns(&)[1])columns);
}
