// Flags between blocks that wait for each other in one direction only. What a thread has written to memory, or has seen written
// by threads behind a barrier, before it releases a value is visible to a thread that acquires this value. Compute capability
// 8.0.
#pragma once

__device__ inline void st_release(int* flag, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ inline int ld_acquire(const int* flag) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}
