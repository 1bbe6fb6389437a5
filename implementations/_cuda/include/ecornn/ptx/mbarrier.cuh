// mbarriers of a cluster: st.async writes up to 16 bytes into another block's shared memory and counts them in an mbarrier
// there, so a thread that waits for all bytes of a phase waits for the values themselves. Compute capability 9.0.
#pragma once
#include "ecornn/ptx/smem.cuh"
#include "ecornn/ptx/spin_wait.cuh"

// mbarrier: of the block whose shared memory `address` is in.
__device__ inline void st_async(smem_addr_t address, uint4 value, smem_addr_t mbarrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
        "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(mbarrier)
        : "memory");
}

__device__ inline void st_async(smem_addr_t address, uint2 value, smem_addr_t mbarrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(address),
                 "r"(value.x), "r"(value.y), "r"(mbarrier)
                 : "memory");
}
__device__ inline void st_async(smem_addr_t address, unsigned value, smem_addr_t mbarrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address), "r"(value),
                 "r"(mbarrier)
                 : "memory");
}

// A phase completes when one thread has arrived with the expected number of bytes, and all these bytes have been written.
__device__ inline void mbarrier_init(smem_addr_t mbarrier) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(mbarrier));
}

__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;"); }

__device__ inline void mbarrier_arrive_expect_tx(smem_addr_t mbarrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory");
}

__device__ inline bool mbarrier_try_wait_parity(smem_addr_t mbarrier, unsigned parity) {
    unsigned is_complete;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(is_complete)
                 : "r"(mbarrier), "r"(parity)
                 : "memory");
    return is_complete;
}

// Waits until the phase of that parity is complete: true; false on a timeout, after WATCHDOG_NS.
__device__ inline bool mbarrier_wait_parity(smem_addr_t mbarrier, unsigned parity) {
    return spin_until([&] { return mbarrier_try_wait_parity(mbarrier, parity); });
}
