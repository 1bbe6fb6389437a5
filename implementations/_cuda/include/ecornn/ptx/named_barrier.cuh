// Warp specialisation: named barriers between warps of a block that have different roles, and the registers of each role.
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

// By all four warps of a warpgroup: registers of a thread from now on, fewer or more than it was launched with.
template <int REGISTERS> __device__ inline void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ inline void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
