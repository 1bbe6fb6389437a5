// Takes the place of ecornn/ptx/spin_wait.cuh. A wait's time is rounds of all threads.
#pragma once
#include "machine.hpp"

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
