// Registers of a warpgroup's threads, where warps have different roles. Compute capability 9.0.
#pragma once

// By all four warps of a warpgroup: registers of a thread from now on, fewer or more than it was launched with.
template <int REGISTERS> __device__ inline void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ inline void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
