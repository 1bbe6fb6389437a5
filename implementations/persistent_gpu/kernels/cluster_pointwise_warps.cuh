// The pointwise warps of a block of a cluster: they compute the gates of every tile and step from the MMA warps' sums,
// broadcast the states to the other blocks, and write the output. They use these members of the kernel's shared storage:
// `states`, two buffers a tile; `barriers`, the full barrier of each of these buffers; `sums`; `pointwise`; and `timed_out`,
// which an MMA thread sets when its wait times out.
#pragma once
#include "ecornn/ptx/cluster.cuh"
#include "ecornn/ptx/mbarrier.cuh"
#include "ecornn/common/jitter.cuh"
#include "recurrent_mma_step.cuh"
#include "ecornn/ptx/named_barrier.cuh"

constexpr int STATE_TILE_BYTES = UNITS * 8 * (int)sizeof(scalar_t);  // of a block, to each other block
constexpr int VECTORS_PER_STATE_TILE = STATE_TILE_BYTES / 16, VECTORS_PER_LANE = ceil_div(VECTORS_PER_STATE_TILE, 32);
constexpr int POINTWISE_WARPS = POINTWISE_THREADS / 32, PEERS_PER_WARP = ceil_div(BLOCKS - 1, POINTWISE_WARPS);
constexpr int BLOCK_THREADS = THREADS + POINTWISE_THREADS;
typedef BTile<RECURRENT_K_TILES> States;
typedef SumStorage<2> Sums;
enum NamedBarrier {
    SumsFull = 1,    // + buffer. The MMA warps, producers, arrive when sums are stored; the pointwise warps, consumers, wait
    SumsEmpty = 3,   // + buffer. The pointwise warps arrive when they have read the sums; the MMA warps wait
    StatesReady = 5  // Among the pointwise warps: the block's own states of a tile are in shared memory
};

// Broadcast of a block's states to its peers, some of them by each warp. bases: start of shared memory in these peers.
template <typename SharedStorage> struct ClusterBroadcast {
    smem_addr_t bases[PEERS_PER_WARP > 0 ? PEERS_PER_WARP : 1];

    template <typename Thread> __device__ ClusterBroadcast(const SharedStorage& shared, const Thread& thread) {
        const int rank = thread.first_unit / UNITS;
#pragma unroll
        for (int i = 0; i < PEERS_PER_WARP; i++)
            bases[i] = map_shared_rank(smem_addr(&shared), (rank + 1 + thread.warp + i * POINTWISE_WARPS) % BLOCKS);
    }

    // Sends a tile's states. source, mbarrier: offsets in shared memory, of the thread's first vector and of the mbarrier.
    __device__ void broadcast(const SharedStorage& shared, smem_addr_t source, smem_addr_t mbarrier, int warp) const {
#pragma unroll
        for (int i = 0; i < VECTORS_PER_LANE; i++) {
            if (i * 32 + threadIdx.x % 32 >= VECTORS_PER_STATE_TILE) continue;
            const uint4 vector = ((const uint4*)((const char*)&shared + source))[i * 32];
#pragma unroll
            for (int p = 0; p < PEERS_PER_WARP; p++)
                if (p * POINTWISE_WARPS + warp < BLOCKS - 1) st_async(bases[p] + source + i * 512, vector, bases[p] + mbarrier);
        }
    }
};

// Initialises the mbarriers and the states, by all of a block's threads, before anything else. place: as jitter's.
template <typename SharedStorage> __device__ inline void init_mbarriers(SharedStorage& shared, int place) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < 16; i++) mbarrier_init(smem_addr(&shared.barriers[0][i]));
        fence_mbarrier_init();
        shared.timed_out = 0;
    }
    zero_smem(shared.states, sizeof(shared.states));
    jitter(-1, place);
    __syncthreads();
}

// Prepares the first step; a barrier of the cluster is to follow.
template <typename SharedStorage, typename Thread>
__device__ inline void load_carry_and_states(SharedStorage& shared, const ForwardParams& params, const Thread& thread,
                                             int tiles) {
    load_biases_and_carry(shared.pointwise, params, thread);
    for (int tile = 0; tile < tiles; tile++) load_initial_states(shared.states[0][tile], params, thread, tile);
}

// Computes, publishes and writes the states of every tile and step; status is 1 after a timeout. inputs: GateInputs, or a
// struct with its functions. on_step_stored(t): called by all these threads when they have written all of step t.
template <typename SharedStorage, typename Thread, typename In, typename OnStepStored>
__device__ inline void run_pointwise_warps(SharedStorage& shared, const ForwardParams& params, const Thread& thread,
                                           int tiles, In inputs, OnStepStored on_step_stored) {
    const ClusterBroadcast<SharedStorage> peers(shared, thread);
    StatePointers pointers(params, thread, tiles);
    pointers.pin_in_registers();
    inputs.load(params, pointers, 0, 0);
    const auto offset_of = [&](const void* what) { return smem_addr(what) - smem_addr(&shared); };
    const auto tile_at = [&](int t, int tile) {
        return offset_of(&shared.states[t % 2][tile].vector(thread.first_unit, thread.lane));
    };
    const auto barrier_at = [&](int t, int tile) { return offset_of(&shared.barriers[t % 2][tile]); };
    smem_addr_t source = tile_at(1, 0), mbarrier = barrier_at(1, 0);  // computed before StatesReady: states are sent after it
    int buffer = 0;
    bool timed_out = false;
    for (int t = 0; t < params.steps; t++)
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const int now = t % 2, next = 1 - now;
            const bool is_last = tile + 1 == tiles, is_published = t + 1 < params.steps;
            const GateOperands operands(shared.pointwise, inputs, thread, tile, params.step(t));
            load_next_inputs(inputs, pointers, params, tiles, tile, t);
            jitter(t, 2);
            named_barrier_sync(NamedBarrier::SumsFull + buffer, BLOCK_THREADS);
            // MMA warps run ahead, so threads may see a timeout in different passes. The block then publishes a pass in part.
            // That is harmless: the states of that pass are valid, and peers that miss bytes of it time out too. In the pass of
            // the timeout, whose sums are not valid, all threads see it.
            timed_out = *(volatile int*)&shared.timed_out;  // before the gates, which need not wait for the load
            jitter(t, 3);
            const auto sums_of_state = [&](int s) { return shared.sums.reduce(buffer, thread, s); };
            const StepResult result(shared.pointwise, sums_of_state, operands, thread, tile, shared.states[now][tile],
                                    shared.states[next][tile]);
            jitter(t, 4);
            named_barrier_arrive(NamedBarrier::SumsEmpty + buffer, BLOCK_THREADS);
            named_barrier_sync(NamedBarrier::StatesReady, POINTWISE_THREADS);
            jitter(t, 5);
            if (is_published && !timed_out) {
                if (thread.number == 0)
                    mbarrier_arrive_expect_tx(smem_addr(&shared) + mbarrier, (BLOCKS - 1) * STATE_TILE_BYTES);
                peers.broadcast(shared, source, mbarrier, thread.warp);
            }
            result.write(pointers, operands, tile);
            if (!is_published) result.write_final(params, shared.pointwise, operands, thread, tile);
            if (is_last) on_step_stored(t);
            pointers.advance(is_last);
            buffer = 1 - buffer;
            const int next_step = is_last ? t + 2 : t + 1, next_tile = is_last ? 0 : tile + 1;
            source = tile_at(next_step, next_tile), mbarrier = barrier_at(next_step, next_tile);
        }
    if (!timed_out) return;
    *(volatile int*)params.status = 1;
    write_nan(params, thread, tiles);
}
