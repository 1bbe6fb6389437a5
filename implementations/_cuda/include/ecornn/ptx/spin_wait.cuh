// Clocks, and bounded spin waits. WATCHDOG_NS: after which a wait times out. Compute capability 8.0.
#pragma once

__device__ inline unsigned long long globaltimer_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// Waits for that many of a multiprocessor's clocks.
__device__ inline void spin_clocks(unsigned clocks) {
    for (const unsigned start = clock(); (unsigned)clock() - start < clocks;) {}
}

__device__ inline void sleep_ns(unsigned ns) { __nanosleep(ns); }

// Polls `condition` until it holds: true; false on a timeout, after WATCHDOG_NS. BY_WARP: a whole warp polls, and its lanes
// leave the loop at once. Lanes that left it one by one would run what follows one by one.
template <bool BY_WARP = false, typename Condition> __device__ inline bool spin_until(Condition condition) {
    unsigned long long start = 0;
#pragma unroll 1
    for (unsigned polls = 1; BY_WARP ? !__all_sync(~0u, condition()) : !condition(); polls++) {
        if (polls % 256) continue;
        const unsigned long long now = globaltimer_ns();
        if (start == 0) start = now;
        const bool is_over = now - start > WATCHDOG_NS;
        if (BY_WARP ? __any_sync(~0u, is_over) : is_over) return false;
    }
    return true;
}

template <typename Condition> __device__ inline bool spin_until_warp(Condition condition) {
    return spin_until<true>(condition);
}
