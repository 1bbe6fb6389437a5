// Asynchronous copies of 16 bytes from global to shared memory; each thread waits for its own.
#pragma once
#include "ecornn/ptx/smem.cuh"

__device__ inline void cp_async_16B(void* shared, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_addr(shared)), "l"(from) : "memory");
}

// The same, which says what the L2 cache is to do with it: to evict it last (keeps), or first.
__device__ inline void cp_async_16B_evict(void* shared, const void* from, bool keeps) {
    unsigned long long last, first;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(last));
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(smem_addr(shared)), "l"(from),
                 "l"(keeps ? last : first)
                 : "memory");
}

// All copies issued since the last group are one group.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the last N groups are pending.
template <int N> __device__ inline void cp_async_wait_group() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ inline void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
