// Warps of a block that do different work: how they wait for each other, and share out the registers. Numbers of meetings are
// 1 to 15; `threads`: of all who wait or tell there.
#pragma once

// Waits until all have come.
__device__ inline void meet(int meeting, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(meeting), "r"(threads) : "memory"); }

// Comes, and goes on.
__device__ inline void come(int meeting, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(meeting), "r"(threads) : "memory"); }

// By all four warps of a group: registers of a thread from now on, fewer or more than it was launched with.
template <int REGISTERS> __device__ inline void make_do_with() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS> __device__ inline void take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
