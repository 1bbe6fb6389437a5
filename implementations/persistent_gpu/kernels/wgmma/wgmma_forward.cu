// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in
//   one launch, as cluster_forward.cu, for many sequences: a persistent GEMM a step by wgmma, W_hh in registers and shared
//   memory.
// Layout: as cluster_forward.cu, but for weight_stream, in whose place Params has
//   mailboxes [tiles of all groups] of 128 bytes, counters, then [2, tiles of all groups, CHUNKS] Chunk, h_t in [t % 2]: read
//   and written, all 0 before the launch. A counter counts the blocks that have published a state of its tile.
//   No two may alias. Alignment: of the element; weight_hh: LOAD_BYTES bytes; mailboxes: 128 bytes.
// Launch: all blocks at once: a group of BLOCKS blocks, in clusters of CLUSTER, for each PASSES tiles of 8 * N_TILES
//   sequences. Block r of a group owns UNITS hidden units from r * UNITS. It multiplies the rows of all units of its cluster
//   by its CLUSTER-th of the columns. Warps 0 to 7, two warpgroups, are the MMA warps: K_PARTITIONS partitions of these
//   columns by groups of rows, M_TILES_PER_PASS times 64 rows each, MMA_REGISTERS registers a thread. The next
//   POINTWISE_THREADS / 32 are the pointwise warps, POINTWISE_REGISTERS registers. Of the last four LOAD_WARPS are load
//   warps. They copy chunks of states into STATE_STAGES stages of each partition. Shared bytes: the host's shared_bytes
//   (wgmma/config.py).
// Cost: reads G H^2 + T B G H values, writes T B H; 2 T B G H^2 operations. Each block reads B H / CLUSTER values a step of
//   its group's B, float32's twice, and sends CLUSTER - 1 and receives as many times B G UNITS sums, twice where K_PARTITIONS
//   is 2.
// Limits: compute capability 9.0; nothing of W_hh is streamed; T, B, G * H below 2^30, as cluster_forward.cu; offsets 64-bit.
// Order: 1. h_t of a tile is read once its counter says that all blocks have published it: by each block's release after a
//   barrier, the first load warp's acquire, its fence between plain accesses and bulk copies, and the load warps' barrier.
//   2. h_(t+1) overwrites h_(t-1): its producer has sums of h_t from all of its cluster. So all blocks had published h_t,
//   each with sums of h_(t-1) from all of its own cluster, whose products were over then.
//   3. A stage is full by its mbarrier, and empty when its warpgroups have waited for their products (STAGE_EMPTY).
//   4. Sums of the block's own warps are full by SumsFull, its peers' by an mbarrier; read by SumsEmpty, of peers by credits:
//   4 bytes to an mbarrier of each block of the cluster. No credit is sent that nobody waits for.
//   5. A wait for a counter that takes WATCHDOG_NS sets timed_out. The block's sums are NaN then, and it publishes nothing
//   more: all others time out or have NaN. All loops run to their end, so that all other waits end. Then status becomes 1.
//   6. Sums are added in one order: bit-equal repeats.
#include "ecornn/ptx/register_reconfig.cuh"
#include "forward_pointwise_warps.cuh"

// Loads the states of every tile and step, by LOAD_WARPS warps, of which the first waits for them.
__device__ inline void run_load_warp(SharedStorage& shared, const Params& params, const Group& group, int passes,
                                     int load_warp) {
    StageLoader loader = {shared.stages, load_warp, 0, false};
    bool timed_out = false;
    for (int t = params.h0 ? 0 : 1; t < params.steps; t++)
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            const unsigned expected = (t + (params.h0 ? 1u : 0u)) * BLOCKS;
            jitter(t, 6);
            if (load_warp == 0 && threadIdx.x % 32 == 0 && !timed_out) {
                timed_out = !wait_for_counter(params.counter(group.first_pass + pass), expected);
                if (timed_out) *(volatile int*)&shared.timed_out = 1;
            }
            loader.sync();
            loader.load(params.states(t, group.first_pass + pass) + group.rank * BLOCK_CHUNKS);
        }
}

// Where a thread's sums of a row go: a block of the cluster, and a place among the sums that it receives.
struct SumTarget {
    int block, place;  // block: CLUSTER where the row is none
    __device__ SumTarget(int row, int sequence_in_pass) {
        const int unit = row / GATES % UNITS;
        block = min(row / (GATES * UNITS), CLUSTER);
        place = unit * ReceivedSums::UNIT_STRIDE + row % GATES * TILE_BATCH + sequence_in_pass;
    }
};

// Sends the sums of a pass to the blocks of the cluster. targets: of each M tile, its upper rows and the lower ones.
__device__ inline void send_sums(SharedStorage& shared, const TileSums& acc,
                                 const SumTarget (&targets)[M_TILES_PER_PASS][2], int buffer, int source, int rank) {
#pragma unroll
    for (int m = 0; m < M_TILES_PER_PASS; m++)
#pragma unroll
        for (int lower = 0; lower < 2; lower++) {
            const SumTarget& target = targets[m][lower];
            if (target.block >= CLUSTER) continue;
            float* const own = &shared.sums[buffer].data[source][target.place];
            const smem_addr_t place = map_shared_rank(smem_addr(own), target.block);
            const smem_addr_t full = map_shared_rank(smem_addr(&shared.sums_full[buffer]), target.block);
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                const uint2 two = sums_of_row(acc[m], n, lower);
                if (CLUSTER == 1 || target.block == rank) *(uint2*)(own + n * 8) = two;
                else st_async(place + n * 32, two, full);
            }
        }
}

// Computes the sums of every tile and step, by the MMA warps.
__device__ inline void run_mma_warps(SharedStorage& shared, const Weights& weights, const Params& params, const Group& group,
                                     int passes) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, partition = partition_of_warp(warp);
    const int source = group.rank * K_PARTITIONS + partition;
    const auto target_of = [&](int m, int lower) { return SumTarget(lane_row(warp, lane, m) + lower * 8, lane % 4 * 2); };
    static_assert(M_TILES_PER_PASS <= 2, "targets");
    const SumTarget targets[2][2] = {{target_of(0, 0), target_of(0, 1)}, {target_of(1, 0), target_of(1, 1)}};
    Multiplier multiplier = {shared.stages, weights, partition, 0, 0};
    int buffer = 0, parity = 1;
    bool is_reused = false;
    for (int t = 0; t < params.steps; t++)
#pragma unroll 1
        for (int pass = 0; pass < passes; pass++) {
            TileSums acc = {};
            jitter(t, 0);
            if (t > 0 || params.h0) multiplier.multiply(acc);
            if (*(volatile int*)&shared.timed_out)
#pragma unroll
                for (int i = 0; i < M_TILES_PER_PASS * 4 * N_TILES; i++)
                    acc[i / (4 * N_TILES)][i % (4 * N_TILES)] = CUDART_NAN_F;
            jitter(t, 1);
            if (is_reused) {
                named_barrier_sync(NamedBarrier::SumsEmpty + buffer, THREADS + POINTWISE_THREADS);
                if (CLUSTER > 1) {
                    const smem_addr_t credits = smem_addr(&shared.credits[buffer]);
                    if (threadIdx.x == 0) mbarrier_arrive_expect_tx(credits, 4 * (CLUSTER - 1));
                    while (!mbarrier_wait_parity(credits, parity)) {}
                }
            }
            send_sums(shared, acc, (const SumTarget(&)[M_TILES_PER_PASS][2])targets, buffer, source, group.rank);
            jitter(t, 2);
            named_barrier_arrive(NamedBarrier::SumsFull + buffer, THREADS + POINTWISE_THREADS);
            if (++buffer == SUM_BUFFERS) buffer = 0, is_reused = true, parity ^= 1;
        }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    persistent_forward(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const Group group(params.batch);
    const int passes = group.passes();
    init_shared(shared);
    cluster_sync();
    if (threadIdx.x < THREADS) {
        warpgroup_reg_alloc<MMA_REGISTERS>();
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const Weights weights(shared.weight_storage,
                              [&](int s, int i) { return load_a_fragment(params.weight_hh, group, warp, lane, s, i); });
        run_mma_warps(shared, weights, params, group, passes);
    } else if (threadIdx.x < THREADS + POINTWISE_THREADS) {
        warpgroup_reg_dealloc<POINTWISE_REGISTERS>();
        run_pointwise_warps(shared, params, group, passes);
    } else {
        warpgroup_reg_dealloc<LOAD_REGISTERS>();
        const int load_warp = (threadIdx.x - THREADS - POINTWISE_THREADS) / 32;
        if (load_warp < LOAD_WARPS) run_load_warp(shared, params, group, passes, load_warp);
    }
    cluster_sync();
}
