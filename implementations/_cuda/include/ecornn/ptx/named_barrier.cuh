// Named barriers between warps of a block that have different roles.
// barrier_id: 1 to 15. num_threads: of all that wait or arrive at the barrier.
#pragma once

// Arrives and waits until all have arrived.
__device__ inline void named_barrier_sync(int barrier_id, int num_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier_id), "r"(num_threads) : "memory");
}

// Arrives and goes on.
__device__ inline void named_barrier_arrive(int barrier_id, int num_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier_id), "r"(num_threads) : "memory");
}
