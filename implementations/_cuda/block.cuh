// What a block has of its own: its dynamic shared memory, and how long it waits. Compute capability 8.0.
// Addresses are of shared memory, as 32-bit words. WATCHDOG_NS: after which a wait is given up.
#pragma once

typedef unsigned int word;

__device__ inline word address_of(const void* shared) { return (word)__cvta_generic_to_shared(shared); }

// The block's dynamic shared memory. Its address is kept: in a cluster the compiler would find it anew wherever it is needed, by
// an instruction that the next ones wait for.
__device__ inline unsigned char* block_memory() {
    extern __shared__ __align__(128) unsigned char memory[];
    word address = address_of(memory);
    asm volatile("" : "+r"(address));
    return (unsigned char*)__cvta_shared_to_generic(address);
}

__device__ inline unsigned long long now_ns() {
    unsigned long long found;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(found));
    return found;
}

// Waits so long, of a multiprocessor's clocks.
__device__ inline void let_pass(unsigned clocks) {
    for (const unsigned start = clock(); (unsigned)clock() - start < clocks;) {}
}

__device__ inline void sleep_ns(unsigned ns) { __nanosleep(ns); }

// Until `is_there`, asked again and again, says so: true; false when it does not after WATCHDOG_NS. BY_WARP: of a whole warp,
// whose lanes go on together: those that left one by one would do one by one what comes next.
template <bool BY_WARP = false, typename IsThere> __device__ inline bool wait_until(IsThere is_there) {
    unsigned long long start = 0;
#pragma unroll 1
    for (unsigned asked = 1; BY_WARP ? !__all_sync(~0u, is_there()) : !is_there(); asked++) {
        if (asked % 256) continue;
        const unsigned long long now = now_ns();
        if (start == 0) start = now;
        const bool is_over = now - start > WATCHDOG_NS;
        if (BY_WARP ? __any_sync(~0u, is_over) : is_over) return false;
    }
    return true;
}

template <typename IsThere> __device__ inline bool wait_together(IsThere is_there) { return wait_until<true>(is_there); }
