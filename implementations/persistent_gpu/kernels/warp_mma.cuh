// Warp-level matrix products by mma.sync, accumulated in float32: operand A weights, rows of 16 of them, operand B 8 columns.
// Of 16 bits, TF32 of float32 (whose further bits the hardware leaves out), or USE_3XTF32: 3xTF32, float32 in a big and a small
// part of TF32 each, three products, which are added outside of the tensor cores, as those do not round to nearest. Weights are
// split in every step, or once by a kernel that has storage for both parts.
// Thread (g, t) = (lane / 4, lane % 4) holds, of A, rows g and g + 8, 16 bytes of each from 16 t of a K tile of 64; of B, 16
// bytes of column g from 16 t. The order of elements along K is free as long as it is the same for both.
#pragma once
#include "ecornn/ptx/mma.cuh"
#include "ecornn/ptx/opaque.cuh"
#include "ecornn/common/dtypes.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS;  // that multiply, of recurrent kernels; BLOCK_THREADS are those of all roles
constexpr int K_TILE = 4 * ELEMENTS_PER_VECTOR;
constexpr bool IS_SINGLE_TF32 = sizeof(scalar_t) == 4 && !USE_3XTF32;

// Elements (row g, column 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
struct Accumulator {
    float data[4];
};

// Registers in the order of mma.sync, so that loads need no moves: two words of row g and two of g + 8 alternately, then two
// more of each.
struct AFragment {
    uint4 left, right;
};
__device__ inline AFragment make_a_fragment(const uint4& upper, const uint4& lower) {
    return {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
}

__device__ inline void mma_k_tile_1x(Accumulator& acc, const AFragment& a, const uint4& b) {
    mma_m16n8(acc.data, a.left.x, a.left.y, a.left.z, a.left.w, b.x, b.y);
    mma_m16n8(acc.data, a.right.x, a.right.y, a.right.z, a.right.w, b.z, b.w);
}

#if USE_3XTF32
// Rounds to nearest, to as many bits as TF32 has.
__device__ inline unsigned tf32_big(unsigned x) {
    opaque(x);
    return (x + 0x1000) & 0xffffe000;
}
__device__ inline unsigned tf32_small(unsigned x, unsigned big) {
    return __float_as_uint(__uint_as_float(x) - __uint_as_float(big));
}
__device__ inline uint4 tf32_big(const uint4& x) { return {tf32_big(x.x), tf32_big(x.y), tf32_big(x.z), tf32_big(x.w)}; }
__device__ inline uint4 tf32_small(const uint4& x, const uint4& big) {
    return {tf32_small(x.x, big.x), tf32_small(x.y, big.y), tf32_small(x.z, big.z), tf32_small(x.w, big.w)};
}

// Two parts of B. An infinite element is in the small part alone, which is multiplied by big parts of A only: a small part of A
// may be 0, or of the other sign.
struct BFragment {
    uint4 big, small;
};
__device__ inline unsigned zero_if_infinite(unsigned x) {
    constexpr float MAX_FINITE = 3.40282347e38f;
    return fabsf(__uint_as_float(x)) > MAX_FINITE ? 0 : x;
}
__device__ inline uint4 zero_if_infinite(const uint4& x) {
    return {zero_if_infinite(x.x), zero_if_infinite(x.y), zero_if_infinite(x.z), zero_if_infinite(x.w)};
}
__device__ inline BFragment make_b_fragment(const uint4& x) {
    const uint4 big = zero_if_infinite(tf32_big(x));
    return {big, tf32_small(x, big)};
}

// Two parts of A: split in every step, or once where there is storage for both.
struct SplitAFragment {
    AFragment big, small;
};
__device__ inline AFragment tf32_big(const AFragment& x) { return {tf32_big(x.left), tf32_big(x.right)}; }
__device__ inline AFragment tf32_small(const AFragment& x, const AFragment& big) {
    return {tf32_small(x.left, big.left), tf32_small(x.right, big.right)};
}
__device__ inline SplitAFragment split_a_fragment(const AFragment& x) {
    const AFragment big = tf32_big(x);
    return {big, tf32_small(x, big)};
}

// Of N times 8 columns.
template <int N> __device__ inline void mma_k_tile(Accumulator (&acc)[N], const SplitAFragment& a, const BFragment (&b)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        Accumulator product = {};
        mma_k_tile_1x(product, a.small, b[n].big);
        mma_k_tile_1x(product, a.big, b[n].small);
        mma_k_tile_1x(product, a.big, b[n].big);
#pragma unroll
        for (int i = 0; i < 4; i++) acc[n].data[i] += product.data[i];
    }
}
#else
typedef uint4 BFragment;
typedef AFragment SplitAFragment;
__device__ inline BFragment make_b_fragment(const uint4& x) { return x; }
__device__ inline SplitAFragment split_a_fragment(const AFragment& x) { return x; }
template <int N> __device__ inline void mma_k_tile(Accumulator (&acc)[N], const SplitAFragment& a, const BFragment (&b)[N]) {
#pragma unroll
    for (int n = 0; n < N; n++) mma_k_tile_1x(acc[n], a, b[n]);
}
#endif

__device__ inline void mma_k_tile(Accumulator& acc, const AFragment& a, const BFragment& b) {
    mma_k_tile((Accumulator(&)[1])acc, split_a_fragment(a), (const BFragment(&)[1])b);
}
