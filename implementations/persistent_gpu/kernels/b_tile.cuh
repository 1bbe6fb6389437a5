// Operand B of a product in shared memory, 8 sequences of it, and the product of the block's weights with it: K_PARTITIONS
// partitions of K by groups of rows, a warp each, all of its M_TILES tiles of rows by one K tile at once.
#pragma once
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/common/zero_smem.cuh"
#include "resident_weights.cuh"

// Elements of 8 sequences, K_TILES K tiles of each partition. A block's units are adjacent; what 8 lanes read at once is in different banks.
template <int K_TILES> struct BTile {
    static constexpr int VECTORS_PER_SEQUENCE = K_TILES * K_PARTITIONS * 4;
    scalar_t data[VECTORS_PER_SEQUENCE][8][ELEMENTS_PER_VECTOR];
    __device__ const uint4& vector(int unit, int i) const { return ((const uint4*)data[unit / ELEMENTS_PER_VECTOR])[i]; }
    __device__ scalar_t& at(unsigned unit, unsigned sequence) {
        return data[unit / ELEMENTS_PER_VECTOR][(sequence + unit / ELEMENTS_PER_VECTOR * 2) % 8][unit % ELEMENTS_PER_VECTOR];
    }
};

// A thread's vectors, from the first K tile of its warp's partition on: K tiles are 32 vectors apart.
template <int K_TILES> __device__ inline const uint4* thread_b_ptr(const BTile<K_TILES>& tile, int group, int lane) {
    const int g = lane / 4, t = lane % 4;
    return (const uint4*)tile.data[group * K_TILES * 4 + t][(g + 2 * t) % 8];
}

// Adds the product with the weights' passes from FIRST on to `acc`, a pass for each K tile.
template <int FIRST, int K_TILES, int M_TILES, typename Weights>
__device__ inline void mma_mainloop(Accumulator (&acc)[M_TILES], Weights& weights, const uint4* b_ptr) {
    constexpr int K_TILES_IN_FLIGHT = ceil_div(3, M_TILES);  // whose split fragments may be in registers at once
    weights.template for_each_pass_interleaved<FIRST, FIRST + K_TILES>([&](int pass, auto fragment) {
        const int k_tile = pass - FIRST;
        if (USE_3XTF32 && k_tile % K_TILES_IN_FLIGHT == 0) scheduling_fence(b_ptr + k_tile * 32);
        const BFragment b = make_b_fragment(b_ptr[k_tile * 32]);
#pragma unroll
        for (int i = 0; i < M_TILES; i++) mma_k_tile(acc[i], fragment(i), b);
    });
}

// The same of N tiles, tile_stride vectors apart, each weight read once for all.
template <int K_TILES, int M_TILES, int N, typename Weights>
__device__ inline void mma_mainloop_ntiled(Accumulator (&acc)[M_TILES][N], Weights& weights, const uint4* b_ptr,
                                           int tile_stride) {
    weights.template for_each_pass_interleaved<0, K_TILES>([&](int pass, auto fragment) {
        if (USE_3XTF32) scheduling_fence(b_ptr + pass * 32);
        BFragment b[N];
#pragma unroll
        for (int n = 0; n < N; n++) b[n] = make_b_fragment(b_ptr[pass * 32 + n * tile_stride]);
#pragma unroll
        for (int i = 0; i < M_TILES; i++) mma_k_tile(acc[i], split_a_fragment(fragment(i)), b);
    });
}
