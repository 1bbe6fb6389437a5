// Bulk copies from global to shared memory, whose bytes an mbarrier counts. Compute capability 9.0.
#pragma once
#include "ecornn/ptx/smem.cuh"

// Copies `bytes` bytes. All three are multiples of 16.
__device__ inline void bulk_copy(smem_addr_t to, const void* from, unsigned bytes, smem_addr_t mbarrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(mbarrier)
                 : "memory");
}

// Bulk copies after it read what plain stores have written that are visible to this thread.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
