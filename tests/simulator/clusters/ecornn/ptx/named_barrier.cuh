// Takes the place of ecornn/ptx/named_barrier.cuh.
#pragma once
#include "machine.hpp"

inline Barrier& named_barrier(int barrier_id, int num_threads) {
    Barrier& barrier = current.block->named[barrier_id];
    barrier.members = num_threads;
    return barrier;
}
inline void named_barrier_sync(int barrier_id, int num_threads) { barrier_sync(named_barrier(barrier_id, num_threads)); }
inline void named_barrier_arrive(int barrier_id, int num_threads) { barrier_arrive(named_barrier(barrier_id, num_threads)); }
