// Asynchronous copies of 16 bytes from global to shared memory; each thread waits for its own.
#pragma once
#include "ecornn/ptx/smem.cuh"

__device__ inline void cp_async_16B(void* shared, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_addr(shared)), "l"(from) : "memory");
}

// All copies issued since the last group are one group.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the last N groups are pending.
template <int N> __device__ inline void cp_async_wait_group() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

__device__ inline void prefetch_l2(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
