// Flags and counters between blocks that wait for each other in one direction only, or not at all. What a thread has written to
// memory, or has seen written by threads behind a barrier, before it releases a value is visible to a thread that acquires this
// value. Compute capability 8.0.
#pragma once

__device__ inline void st_release(int* flag, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ inline int ld_acquire(const int* flag) {
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

// Returns the value before. Each of several threads that add releases to those who add later, and acquires from those before.
__device__ inline unsigned atom_add_acq_rel(unsigned* counter, unsigned value) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
    return before;
}
