// Takes the place of implementations/cuda/cluster.cuh: the same functions, by machine.hpp.
#pragma once
#include "machine.hpp"

typedef unsigned int word;

inline unsigned char* block_memory() { return current->block->memory.data(); }
inline word address_of(const void* shared) {
    return current->block->rank << 24 | (word)((const unsigned char*)shared - block_memory());
}
inline word in_block(word address, word rank) { return rank << 24 | (address & 0xffffff); }
inline void send(word place, uint4 value, word barrier) { cluster->messages.push_back({place, barrier, value}); }
inline void make_barrier(word barrier) { *(Barrier*)memory_at(barrier) = {0, 0, 0}; }
inline void show_barriers() {}
inline void expect(word address, word bytes) {
    Barrier& barrier = *(Barrier*)memory_at(address);
    barrier.bytes += bytes, barrier.is_told = 1;
    settle(barrier);
}
inline bool has_ended(word barrier, word parity) { return ((Barrier*)memory_at(barrier))->parity != (short)parity; }
inline bool wait_for(word barrier, word parity) {
    const unsigned long long start = cluster->sweeps;
    while (!has_ended(barrier, parity)) {
        if (cluster->sweeps - start > WATCHDOG_NS) return false;
        pause();
    }
    current->are_shown = false;
    return true;
}
inline word rank_in_cluster() { return current->block->rank; }
inline void sync_cluster() { meet(cluster->meeting); }
