// Copies of 16 bytes from memory to shared memory that go on while the thread does other things; each waits for its own.
#pragma once
#include "block.cuh"

__device__ inline void copy_later(void* shared, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address_of(shared)), "l"(from) : "memory");
}

// All copies begun since the last group are one.
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until no more than LEFT groups, the last ones, are still on their way.
template <int LEFT> __device__ inline void await_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// What this thread has written to memory is what its later copies read.
__device__ inline void show_memory() { __threadfence(); }

// Into the L2 cache, for who reads it later.
__device__ inline void fetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
