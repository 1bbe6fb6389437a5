// Takes the place of ecornn/ptx/wgmma.cuh: each warp multiplies its own 16 rows, at once.
#pragma once
#include "ecornn/ptx/mma.cuh"
#include "ecornn/ptx/smem.cuh"

struct wgmma_descriptor_t {
    smem_addr_t start;
    unsigned k_stride;
};
inline wgmma_descriptor_t wgmma_descriptor(smem_addr_t start, unsigned k_stride) { return {start, k_stride}; }
inline void wgmma_fence() {}
inline void wgmma_commit_group() {}
template <int N> void wgmma_wait_group() {}
template <int N> void wgmma_fence_operands(float (&)[N]) {}

template <int N> void wgmma_m64(float (&acc)[N], const uint4& a, wgmma_descriptor_t b) {
    const unsigned lane = threadIdx.x % 32;
    for (int n = 0; n < N / 4; n++) {
        const unsigned* word = (const unsigned*)smem_ptr(b.start + n * 128) + lane;
        float part[4];
        memcpy(part, acc + n * 4, sizeof(part));
        mma_m16n8(part, a.x, a.y, a.z, a.w, *word, *(const unsigned*)((const char*)word + b.k_stride));
        memcpy(acc + n * 4, part, sizeof(part));
    }
}
