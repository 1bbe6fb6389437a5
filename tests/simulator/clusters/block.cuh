// Takes the place of implementations/_cuda/block.cuh: the same functions, by machine.hpp. A wait's time is rounds of all threads.
#pragma once
#include "machine.hpp"

typedef unsigned int smem_addr_t;

inline unsigned char* dynamic_smem() { return current.block->memory; }
inline smem_addr_t smem_addr(const void* shared) {
    return current.block->place << 24 | (smem_addr_t)((const unsigned char*)shared - dynamic_smem());
}
inline unsigned long long globaltimer_ns() { return sweeps_so_far() * 1024; }
inline void sleep_ns(unsigned ns) { poll_until([](void*) { return false; }, nullptr, ns / 256); }
inline void spin_clocks(unsigned clocks) {}
template <typename Condition> bool spin_until(Condition condition) {
    return poll_until([](void* data) { return (*(Condition*)data)(); }, &condition, WATCHDOG_NS);
}
template <typename Condition> bool spin_until_warp(Condition condition) {
    const bool timed_out = !spin_until(condition);
    return !barrier_sync(warp_of_current().barrier, timed_out);
}
