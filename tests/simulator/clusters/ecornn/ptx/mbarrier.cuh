// Takes the place of ecornn/ptx/mbarrier.cuh: the same functions, by machine.hpp.
#pragma once
#include "ecornn/ptx/smem.cuh"
#include "ecornn/ptx/spin_wait.cuh"

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
