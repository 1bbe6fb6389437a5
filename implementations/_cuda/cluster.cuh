// How blocks of a cluster hand values to each other: st.async writes up to 16 bytes into another block's shared memory and counts
// them in an mbarrier there, so that who waits for all bytes of a phase waits for the values themselves. Compute capability 9.0.
#pragma once
#include "block.cuh"

// The same place in the shared memory of another block of the cluster.
__device__ inline word in_block(word address, word rank) {
    word found;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(address), "r"(rank));
    return found;
}

// barrier: an mbarrier of the block whose memory `place` is.
__device__ inline void send(word place, uint4 value, word barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(place),
                 "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
                 : "memory");
}

__device__ inline void send(word place, uint2 value, word barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(place), "r"(value.x),
                 "r"(value.y), "r"(barrier)
                 : "memory");
}
__device__ inline void send(word place, word value, word barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(place), "r"(value),
                 "r"(barrier)
                 : "memory");
}

// A phase of it ends when its bytes have been told, by one thread, and have come.
__device__ inline void make_barrier(word barrier) { asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier)); }

__device__ inline void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;"); }

__device__ inline void expect(word barrier, word bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline bool has_ended(word barrier, word parity) {
    word found;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(found)
        : "r"(barrier), "r"(parity)
        : "memory");
    return found;
}

// Until the phase of that parity has ended: true; false when it has not after WATCHDOG_NS.
__device__ inline bool wait_for(word barrier, word parity) {
    return wait_until([&] { return has_ended(barrier, parity); });
}

__device__ inline word rank_in_cluster() {
    word found;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(found));
    return found;
}

// What a block did before is seen by all after it.
__device__ inline void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
