// A cluster's blocks, and distributed shared memory. Compute capability 9.0.
#pragma once
#include "ecornn/ptx/smem.cuh"

// The same address in the shared memory of another block of the cluster.
__device__ inline smem_addr_t map_shared_rank(smem_addr_t address, smem_addr_t rank) {
    smem_addr_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

__device__ inline float ld_shared_cluster(smem_addr_t address) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

__device__ inline unsigned block_rank_in_cluster() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// What a block wrote before is visible to all blocks of the cluster after it.
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
