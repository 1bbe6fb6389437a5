// Takes the place of implementations/_cuda/cluster.cuh: the same functions, by machine.hpp.
#pragma once
#include "block.cuh"

inline smem_addr_t map_shared_rank(smem_addr_t address, smem_addr_t rank) {
    return (current.block->place - current.block->rank + rank) << 24 | (address & 0xffffff);
}
template <typename Value> void st_async(smem_addr_t address, Value value, smem_addr_t mbarrier) {
    store_later(address, &value, sizeof(value), mbarrier);
}
inline void mbarrier_init(smem_addr_t mbarrier) { *(MBarrier*)smem_ptr(mbarrier) = {0, 0, 0}; }
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expect_tx(smem_addr_t mbarrier, unsigned bytes) {
    arrive_expect_tx(*(MBarrier*)smem_ptr(mbarrier), bytes);
}
inline bool mbarrier_try_wait_parity(smem_addr_t mbarrier, unsigned parity) {
    return ((MBarrier*)smem_ptr(mbarrier))->parity != (short)parity;
}
inline bool mbarrier_wait_parity(smem_addr_t mbarrier, unsigned parity) {
    return spin_until([&] { return mbarrier_try_wait_parity(mbarrier, parity); });
}
inline unsigned block_rank_in_cluster() { return current.block->rank; }
inline void cluster_sync() { barrier_sync(*current.block->of_cluster); }
