// Takes the place of ecornn/ptx/cluster.cuh: the same functions, by machine.hpp.
#pragma once
#include "ecornn/ptx/smem.cuh"

inline smem_addr_t map_shared_rank(smem_addr_t address, smem_addr_t rank) {
    return (current.block->place - current.block->rank + rank) << 24 | (address & 0xffffff);
}
inline float ld_shared_cluster(smem_addr_t address) { return *(const float*)smem_ptr(address); }
inline unsigned block_rank_in_cluster() { return current.block->rank; }
inline void cluster_sync() { barrier_sync(*current.block->of_cluster); }
