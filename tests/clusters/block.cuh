// Takes the place of implementations/_cuda/block.cuh: the same functions, by machine.hpp. A wait's time is rounds of all threads.
#pragma once
#include "machine.hpp"

typedef unsigned int word;

inline unsigned char* block_memory() { return current.block->memory; }
inline word address_of(const void* shared) {
    return current.block->place << 24 | (word)((const unsigned char*)shared - block_memory());
}
inline unsigned long long now_ns() { return sweeps_so_far() * 1024; }
inline void sleep_ns(unsigned ns) { wait_until([](void*) { return false; }, nullptr, ns / 256); }
inline void let_pass(unsigned clocks) {}
template <typename IsThere> bool wait_until(IsThere is_there) {
    return wait_until([](void* about) { return (*(IsThere*)about)(); }, &is_there, WATCHDOG_NS);
}
template <typename IsThere> bool wait_together(IsThere is_there) {
    const bool is_over = !wait_until(is_there);
    return !meet(warp_of_current().meeting, is_over);
}
