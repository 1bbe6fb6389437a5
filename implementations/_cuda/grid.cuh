// How blocks that run at once hand values to each other through the L2 cache: 16 bytes at a time, which are written and read as
// one, so that one number among them says that all of them are there. No fence is needed, and no flag. Compute capability 8.0.
#pragma once
#include "block.cuh"

__device__ inline void publish(uint4* place, uint4 value) {
    asm volatile(
        "{ .reg .b128 all; .reg .b64 low, high; mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4}; mov.b128 all, {low, high};\n"
        "st.relaxed.gpu.global.b128 [%0], all; }" ::"l"(place),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
        : "memory");
}

// What is there by now, where it is wanted, without a branch.
__device__ inline void read_again(uint4& found, const uint4* place, bool is_wanted) {
    asm volatile(
        "{ .reg .pred p; .reg .b128 all; .reg .b64 low, high; setp.ne.u32 p, %5, 0;\n"
        "mov.b64 low, {%0, %1}; mov.b64 high, {%2, %3}; mov.b128 all, {low, high};\n"
        "@p ld.relaxed.gpu.global.b128 all, [%4];\n"
        "mov.b128 {low, high}, all; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }"
        : "+r"(found.x), "+r"(found.y), "+r"(found.z), "+r"(found.w)
        : "l"(place), "r"((unsigned)is_wanted)
        : "memory");
}

// What is there by now.
__device__ inline uint4 published(const uint4* place) {
    uint4 found;
    asm volatile(
        "{ .reg .b128 all; .reg .b64 low, high; ld.relaxed.gpu.global.b128 all, [%4];\n"
        "mov.b128 {low, high}, all; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }"
        : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
        : "l"(place)
        : "memory");
    return found;
}

// What the block's threads published before they met is seen by who finds that it has arrived.
__device__ inline void arrive(unsigned* counter) {
    asm volatile("fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ inline unsigned arrived(const unsigned* counter) {
    unsigned found;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
    return found;
}
