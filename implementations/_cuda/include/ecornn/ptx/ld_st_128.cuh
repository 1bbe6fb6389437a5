// 128-bit relaxed loads and stores, by which blocks that run at once exchange values through the L2 cache. 16 bytes are stored
// and loaded as one, so a flag among them says that all of them are valid. No fence and no other flag is needed. Compute
// capability 8.0.
#pragma once

__device__ inline void st_relaxed_b128(uint4* ptr, uint4 value) {
    asm volatile(
        "{ .reg .b128 all; .reg .b64 low, high; mov.b64 low, {%1, %2}; mov.b64 high, {%3, %4}; mov.b128 all, {low, high};\n"
        "st.relaxed.gpu.global.b128 [%0], all; }" ::"l"(ptr),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
        : "memory");
}

// Loads where the predicate holds, without a branch.
__device__ inline void ld_relaxed_b128_if(uint4& value, const uint4* ptr, bool predicate) {
    asm volatile(
        "{ .reg .pred p; .reg .b128 all; .reg .b64 low, high; setp.ne.u32 p, %5, 0;\n"
        "mov.b64 low, {%0, %1}; mov.b64 high, {%2, %3}; mov.b128 all, {low, high};\n"
        "@p ld.relaxed.gpu.global.b128 all, [%4];\n"
        "mov.b128 {low, high}, all; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }"
        : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
        : "l"(ptr), "r"((unsigned)predicate)
        : "memory");
}

__device__ inline uint4 ld_relaxed_b128(const uint4* ptr) {
    uint4 value;
    asm volatile(
        "{ .reg .b128 all; .reg .b64 low, high; ld.relaxed.gpu.global.b128 all, [%4];\n"
        "mov.b128 {low, high}, all; mov.b64 {%0, %1}, low; mov.b64 {%2, %3}, high; }"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"(ptr)
        : "memory");
    return value;
}

// What the block's threads stored before a barrier of the block is visible to a thread that acquires the counter's new value.
__device__ inline void red_add_release(unsigned* counter) {
    asm volatile("fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ inline unsigned ld_acquire(const unsigned* counter) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}
