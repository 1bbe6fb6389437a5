// Takes the place of implementations/_cuda/cluster.cuh: the same functions, by machine.hpp.
#pragma once
#include "block.cuh"

inline word in_block(word address, word rank) {
    return (current.block->place - current.block->rank + rank) << 24 | (address & 0xffffff);
}
template <typename Value> void send(word place, Value value, word barrier) { send_later(place, &value, sizeof(value), barrier); }
inline void make_barrier(word barrier) { *(Barrier*)memory_at(barrier) = {0, 0, 0}; }
inline void show_barriers() {}
inline void expect(word barrier, word bytes) { tell(*(Barrier*)memory_at(barrier), bytes); }
inline bool has_ended(word barrier, word parity) { return ((Barrier*)memory_at(barrier))->parity != (short)parity; }
inline bool wait_for(word barrier, word parity) {
    return wait_until([&] { return has_ended(barrier, parity); });
}
inline word rank_in_cluster() { return current.block->rank; }
inline void sync_cluster() { meet(*current.block->of_cluster); }
