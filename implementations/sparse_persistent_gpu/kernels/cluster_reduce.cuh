// Reduction over the blocks of a cluster, each of which has the non-zeros of all their rows in one segment of the columns. They
// send partial sums to the rows' own blocks, into two buffers that alternate. The mbarrier of each buffer counts the bytes.
// Each block sends something to each other in every step. A sender that reuses a buffer has received the states of the step
// before. That is the proof that the buffer's block has read it: those states were computed with partial sums from its whole
// cluster, and one block of that had received what the buffer's block published after its read. For the same reason no reader
// still needs what a block overwrites when it publishes.
#pragma once
#include "ecornn/ptx/cluster.cuh"
#include "ecornn/ptx/mbarrier.cuh"
#include "partial_sums.cuh"

#if CLUSTER > 1
#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTER_DIMS
#endif
static_assert(CLUSTER == 1 || (PARTS_A_ROW > 0 && TILES == 1 && BLOCKS % CLUSTER == 0), "SparseConfig");

// Synchronises all threads of a block, or of its cluster.
__device__ inline void sync_block_or_cluster() {
    if (CLUSTER > 1) cluster_sync();
    else __syncthreads();
}

// Where a thread's partial sum goes: a slot, or the addresses of one and its mbarrier in a block, 0 where it has no row.
struct Destination {
    int slot;
    smem_addr_t address, mbarrier;
};

struct PartialSumExchange {
    unsigned long long mbarriers[BUFFERS];
    int received_partials;  // partial sums that the block receives in a step

    // Initialises the mbarriers; a barrier of the cluster is to follow. partials_of_block: [BLOCKS].
    __device__ void init(const int* partials_of_block) {
        if (threadIdx.x == 0) received_partials = partials_of_block[blockIdx.x % BLOCKS];
        if (threadIdx.x < BUFFERS) mbarrier_init(smem_addr(&mbarriers[threadIdx.x]));
        fence_mbarrier_init();
    }
    // slot: index among those of all blocks of the cluster, one block's after the other's; below 0 where there is none.
    template <int ROW_GATES> __device__ Destination destination_of(const PartialSums<ROW_GATES>& to, int slot) const {
        if (CLUSTER == 1 || slot < 0) return {slot, 0, 0};
        const smem_addr_t rank = slot / to.SLOTS, address = smem_addr(to.slots[0]) + slot % to.SLOTS * SEQUENCES * 4;
        return {slot, map_shared_rank(address, rank), map_shared_rank(smem_addr(mbarriers), rank)};
    }
    template <int ROW_GATES>
    __device__ void send_partial_sum(PartialSums<ROW_GATES>& to, const Destination& destination,
                                     const float (&sums)[SEQUENCES], unsigned iteration) const {
        if (CLUSTER == 1) return to.store(destination.slot, sums);
        if (threadIdx.x == 0)
            mbarrier_arrive_expect_tx(smem_addr(&mbarriers[iteration % BUFFERS]), received_partials * SEQUENCES * 4);
        if (!destination.address) return;
        const smem_addr_t address = destination.address + iteration % BUFFERS * (smem_addr_t)sizeof(to.slots[0]);
        const smem_addr_t mbarrier = destination.mbarrier + iteration % BUFFERS * 8;
        const auto bits = [&](int b) { return __float_as_uint(sums[b % SEQUENCES]); };
        if (SEQUENCES == 1) st_async(address, bits(0), mbarrier);
        if (SEQUENCES == 2) st_async(address, uint2{bits(0), bits(1)}, mbarrier);
#pragma unroll
        for (int b = 0; b < SEQUENCES && SEQUENCES > 2; b += 4)
            st_async(address + b * 4, uint4{bits(b), bits(b + 1), bits(b + 2), bits(b + 3)}, mbarrier);
    }
    // By whole warps. False after a timeout.
    __device__ bool wait_partial_sums(unsigned iteration) const {
        if (CLUSTER == 1) return true;
        return spin_until_warp([&] {
            return mbarrier_try_wait_parity(smem_addr(&mbarriers[iteration % BUFFERS]), iteration / BUFFERS % 2);
        });
    }
};
