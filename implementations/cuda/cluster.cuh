// How blocks of a cluster hand values to each other: st.async writes 16 bytes into another block's shared memory and counts
// them in an mbarrier there, so that who waits for all bytes of a phase waits for the values themselves. Compute capability 9.0.
// Addresses are of shared memory, as 32-bit words. WATCHDOG_NS: after which a wait is given up.
#pragma once

typedef unsigned int word;

__device__ inline word address_of(const void* shared) { return (word)__cvta_generic_to_shared(shared); }

// The block's dynamic shared memory.
__device__ inline unsigned char* block_memory() {
    extern __shared__ __align__(128) unsigned char memory[];
    return memory;
}

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

// A phase of it ends when its bytes have been told, by one thread, and have come.
__device__ inline void make_barrier(word barrier) { asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier)); }

__device__ inline void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;"); }

__device__ inline void expect(word barrier, word bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline bool has_ended(word barrier, word parity) {
    word found;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(found)
        : "r"(barrier), "r"(parity)
        : "memory");
    return found;
}

__device__ inline unsigned long long now_ns() {
    unsigned long long found;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(found));
    return found;
}

// Until the phase of that parity has ended: true; false when it has not after WATCHDOG_NS.
__device__ inline bool wait_for(word barrier, word parity) {
    if (has_ended(barrier, parity)) return true;
    const unsigned long long start = now_ns();
    while (true) {
        for (int i = 0; i < 256; i++)
            if (has_ended(barrier, parity)) return true;
        if (now_ns() - start > WATCHDOG_NS) return false;
    }
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
