// How blocks that do not wait for each other both ways say how far they are: what a thread has written to memory, or has seen
// written by threads it met, before it says a number, is there for who has heard that number. Compute capability 8.0.
#pragma once
#include "block.cuh"

__device__ inline void say(int* place, int number) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(place), "r"(number) : "memory");
}

// What was said last.
__device__ inline int heard(const int* place) {
    int found;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(place) : "memory");
    return found;
}
