// How blocks of a cluster, each of which has elements of all their rows in one segment of the columns, send parts of sums to the
// rows' own blocks: into the two buffers by turns, each with an mbarrier that counts the bytes. Each block is sent something by each
// other in every step. So who sends to a buffer again, and has heard what was found in the step before, knows that its block has
// read what was there: that was found with parts from the whole of its cluster, of which one block had heard what that block told
// after it had read. For the same reason nobody is still to read what a block overwrites when it tells.
#pragma once
#include "cluster.cuh"
#include "sparse_parts.cuh"

#if CLUSTER > 1
#define OF_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define OF_CLUSTERS
#endif
static_assert(CLUSTER == 1 || (PARTS_A_ROW > 0 && TILES == 1 && BLOCKS % CLUSTER == 0), "Sparse");

// All threads of a block, or of its cluster.
__device__ inline void meet_all() {
    if (CLUSTER > 1) cluster_sync();
    else __syncthreads();
}

// Where a thread puts its part: a slot, or the place of one and its mbarrier in a block's memory, 0 where it has no row.
struct Route {
    int slot;
    smem_addr_t place, barrier;
};

struct Sent {
    unsigned long long barriers[BUFFERS];
    int parts;  // that the block is sent in a step

    // parts_of: [BLOCKS]. Then all threads of the cluster are to meet.
    __device__ void start(const int* parts_of) {
        if (threadIdx.x == 0) parts = parts_of[blockIdx.x % BLOCKS];
        if (threadIdx.x < BUFFERS) mbarrier_init(smem_addr(&barriers[threadIdx.x]));
        fence_mbarrier_init();
    }
    // slot: of all blocks of a cluster, one's after the other's, less than 0 where there is none.
    __device__ Route route(const Parts& to, int slot) const {
        if (CLUSTER == 1 || slot < 0) return {slot, 0, 0};
        const smem_addr_t rank = slot / SLOTS, place = smem_addr(to.of_slot[0]) + slot % SLOTS * SEQUENCES * 4;
        return {slot, map_shared_rank(place, rank), map_shared_rank(smem_addr(barriers), rank)};
    }
    __device__ void put(Parts& to, const Route& route, const float (&sums)[SEQUENCES], unsigned turn) const {
        if (CLUSTER == 1) return to.put(route.slot, sums);
        if (threadIdx.x == 0) mbarrier_arrive_expect_tx(smem_addr(&barriers[turn % BUFFERS]), parts * SEQUENCES * 4);
        if (!route.place) return;
        const smem_addr_t place = route.place + turn % BUFFERS * (smem_addr_t)sizeof(to.of_slot[0]);
        const smem_addr_t barrier = route.barrier + turn % BUFFERS * 8;
        const auto bits = [&](int b) { return __float_as_uint(sums[b % SEQUENCES]); };
        if (SEQUENCES == 1) st_async(place, bits(0), barrier);
        if (SEQUENCES == 2) st_async(place, uint2{bits(0), bits(1)}, barrier);
#pragma unroll
        for (int b = 0; b < SEQUENCES && SEQUENCES > 2; b += 4)
            st_async(place + b * 4, uint4{bits(b), bits(b + 1), bits(b + 2), bits(b + 3)}, barrier);
    }
    // Waits for what a cluster's blocks send. By whole warps. False when it does not come.
    __device__ bool come(unsigned turn) const {
        if (CLUSTER == 1) return true;
        return spin_until_warp([&] { return mbarrier_try_wait_parity(smem_addr(&barriers[turn % BUFFERS]), turn / BUFFERS % 2); });
    }
};
