// Takes the place of implementations/cuda/block.cuh: the same functions, by machine.hpp. A wait's time is rounds of all threads.
#pragma once
#include "machine.hpp"

typedef unsigned int word;

inline unsigned char* block_memory() { return current->block->memory.data(); }
inline word address_of(const void* shared) {
    return current->block->rank << 24 | (word)((const unsigned char*)shared - block_memory());
}
inline unsigned long long now_ns() { return cluster->sweeps * 1024; }
inline void sleep_ns(unsigned ns) {
    for (unsigned i = 0; i < ns / 256; i++) pause();
}
template <typename IsThere> bool wait_until(IsThere is_there) {
    const unsigned long long start = cluster->sweeps;
    while (!is_there()) {
        if (cluster->sweeps - start > WATCHDOG_NS) return false;
        pause();
    }
    return true;
}
