// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in one
//   launch, as cluster_forward.cu, for W_hh that does not fit in a cluster or takes longer with one: it stays in the registers
//   and shared memory of as many multiprocessors as there are. What does not fit there is streamed by all of them.
// Layout: as cluster_forward.cu, weight_stream of all groups' ranks, and
//   mailboxes [tiles of all groups, 2, BLOCKS, PACKETS] of 16 bytes, read and written: all 0 before the launch. A packet holds
//   a part of what a block publishes of its units of a tile, sequence by sequence, with the epoch t + 1 for parts of h_t.
//   No two may alias. Alignment: of the element; weight_hh: LOAD_BYTES bytes; weight_stream, mailboxes: 16 bytes.
// Launch: cooperative, all blocks at once: a group of BLOCKS blocks for each TILES tiles of 8 sequences, independent of the
//   other groups; block r of a group owns UNITS hidden units from r * UNITS. Its 8 compute warps are K_PARTITIONS partitions of
//   K by groups of rows. SEQUENCES of a tile are published, 8 or as many as there are at all. LOAD_THREADS more threads, the
//   load warps, receive what is published, with several tiles of the next one meanwhile, into BUFFERS buffers that alternate.
//   Where MMA_REGISTERS is not 0 registers are reallocated: MMA_REGISTERS for a thread of the compute warps, LOAD_REGISTERS
//   for one of the load warps. Shared bytes: the host's shared_bytes (config.py).
// Cost: reads G H^2 + T B G H values, writes T B H; 2 T B G H^2 operations. Each reads 4/3 B H values of others a step, of TF32
//   2/3, and what it streams of its rows of W_hh, once a tile. Of an input product as cluster_forward.cu, for a group in place of a cluster.
// Limits: compute capability 8.0; UNITS a multiple of 2; T, B, G * H below 2^30, as cluster_forward.cu; offsets 64-bit.
// Order: 1. A packet is stored and loaded as one (ld_st_128.cuh), so one whose epoch is valid is valid as a whole.
//   2. h_(t+1) of a tile overwrites h_(t-1): its producer has loaded all of h_t, each part of which was stored by a block all
//      of whose threads had loaded all of h_(t-1), the block's barriers being in between.
//   3. So no consumer still needs what is overwritten, and one that polls sees the epoch that it waits for, or that of two
//      steps before, or 0.
//   4. In a block three barriers a tile and step are between receiving packets and the product, sums and gates, gates and
//      publishing.
//   5. A wait that takes WATCHDOG_NS times out: all threads of its block return at the last of these barriers, and so, in turn,
//      do all blocks of the group.
//   6. Sums are taken in one order: bit-equal repeats.
//   7. Of an input product a block's threads read what the same block wrote, with a barrier in between.
#include "ecornn/common/jitter.cuh"
#include "ecornn/ptx/named_barrier.cuh"
#include "ecornn/ptx/register_reconfig.cuh"
#include "input_gemm.cuh"
#include "ll_state_packets.cuh"
#include "recurrent_mma_step.cuh"

typedef AdjacentUnitsConfig<THREADS> Config;
typedef ThreadCoords<Config> Thread;
// Many are loaded where some are streamed, so several at once.
constexpr int LOADS_IN_FLIGHT = STREAM_STAGES > 0 && REG_FRAGMENTS > 4 ? 4 : REG_FRAGMENTS;
typedef ResidentWeights<M_TILES_PER_WARP * RECURRENT_K_TILES, LOADS_IN_FLIGHT> Weights;
typedef BTile<RECURRENT_K_TILES> States;
typedef OutgoingTile<UNITS> OutgoingStates;  // of a block's own units in a tile, as they are published

constexpr int BLOCK_THREADS = THREADS + LOAD_THREADS, RECEIVER_THREADS = LOAD_THREADS > 0 ? LOAD_THREADS : THREADS;
constexpr int PACKETS_PER_TILE = BLOCKS * OutgoingStates::PACKETS;
constexpr int PACKETS_IN_FLIGHT = BUFFERS > 0 ? 16 : 8;  // of a thread
// During the product of the tile before.
constexpr int PACKETS_PREFETCHED = TILES == 1 ? 0 : BUFFERS > 0 ? PACKETS_IN_FLIGHT : 4;
// With one tile others' states are hardly published sooner: an earlier poll would be in vain.
constexpr int POLL_DELAY_CLOCKS = 400;
enum NamedBarrier {
    StatesFull = 1,     // + buffer. The load warps, producers, arrive when states are stored; compute warps, consumers, wait
    StatesEmpty = 3,    // + buffer. The compute warps arrive when they have read the states; the load warps wait
    ComputeSynced = 5,  // among the compute warps
    LoadSynced = 6      // among the load warps
};

// Recomputed at each call where registers are few, so that what follows from it takes none in between.
__device__ inline Thread thread_coords(int batch) {
    unsigned number = threadIdx.x % THREADS, block = blockIdx.x;
    if (BUFFERS || 8 * REG_FRAGMENTS + 4 * M_TILES_PER_WARP > 130) opaque(number), opaque(block);  // registers are few
    if (TILES == 1) number %= THREADS;  // tells the compiler its range, where that does not take registers
    return {(int)number, (int)(number / 32), (int)(number % 32), (int)(block % BLOCKS * UNITS),
            (int)(block / BLOCKS * TILES * 8), batch};
}

__device__ inline int num_tiles(const Thread& thread) {
    return min(TILES, (thread.batch - thread.first_sequence + 7) / 8);
}

// Packets of h_t of a tile.
__device__ inline uint4* state_mailbox(uint4* mailboxes, const Thread& thread, int t, int tile) {
    return mailboxes + (index)((thread.first_sequence / 8 + tile) * 2 + t % 2) * PACKETS_PER_TILE;
}

// mailbox: of the tile and step.
__device__ inline void publish_states(const OutgoingStates& own, uint4* mailbox, const Thread& thread, unsigned epoch) {
    own.publish(mailbox + thread.first_unit / UNITS * OutgoingStates::PACKETS, thread.number, epoch);
}

struct SharedStorage {
    States states[BUFFERS > 0 ? BUFFERS : 1];
    OutgoingStates own;
    SumStorage<1> sums;  // full by ComputeSynced, empty by StatesFull of the next pass
    PointwiseStorage<Config> pointwise;
    WeightStorage weight_storage;
    int timed_out[2];  // a load warp's wait for that buffer's states has timed out
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "Resources.shared_bytes");

typedef PacketReader<OutgoingStates::Packet, PACKETS_PER_TILE, PACKETS_PREFETCHED, RECEIVER_THREADS, PACKETS_IN_FLIGHT>
    StateReceiver;

// Receives all of h_t of a tile, of which PACKETS_PREFETCHED packets were prefetched. False on a timeout.
__device__ inline bool receive_states(StateReceiver& receiver, States& states, uint4* mailboxes, const Thread& thread, int t,
                                      int tile) {
    const auto store = [&](unsigned index, const uint4& packet) { OutgoingStates::unpack_into(states, index, packet); };
    return receiver.receive(state_mailbox(mailboxes, thread, t, tile), thread.number, t + 1, store);
}

// Receives the states of every tile and step, by the warps after the first 8. thread: numbered among them.
__device__ inline void run_load_warps(SharedStorage& shared, uint4* mailboxes, const Thread& thread, int steps, int tiles,
                                      bool has_initial_states) {
    StateReceiver receiver;
    receiver.prefetch_first(state_mailbox(mailboxes, thread, 0, 0), thread.number);
    int iteration = 0;
    for (int t = 0; t < steps; t++)
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const int buffer = iteration % max(BUFFERS, 1), next = tile + 1 < tiles ? tile + 1 : 0;
            if (iteration++ >= BUFFERS) named_barrier_sync(NamedBarrier::StatesEmpty + buffer, BLOCK_THREADS);
            if (TILES == 1) spin_clocks(POLL_DELAY_CLOCKS);
            if ((t > 0 || has_initial_states) && !receive_states(receiver, shared.states[buffer], mailboxes, thread, t, tile))
                *(volatile int*)&shared.timed_out[buffer] = 1;
            named_barrier_sync(NamedBarrier::LoadSynced, LOAD_THREADS);
            jitter(t, 6);
            const bool timed_out = *(volatile int*)&shared.timed_out[buffer];
            named_barrier_arrive(NamedBarrier::StatesFull + buffer, BLOCK_THREADS);
            if (timed_out) return;
            receiver.prefetch_first(state_mailbox(mailboxes, thread, next > 0 ? t : t + 1, next), thread.number);
        }
}

struct Params : DenseParams {
    uint4 *mailboxes, *weight_stream;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// Computes, publishes and writes the states of every tile and step, by the first 8 warps. False on a timeout.
__device__ inline bool run_compute_warps(SharedStorage& shared, const Params& params, Weights& weights) {
    uint4* const mailboxes = params.mailboxes;
    const int batch = params.batch;
    const int tiles = num_tiles(thread_coords(batch));
    StatePointers pointers(params, thread_coords(batch), tiles);
    GateInputs<Config> inputs = {};
    inputs.load(params, pointers, 0, 0);
    StateReceiver receiver;
    if (!BUFFERS) receiver.prefetch_first(state_mailbox(mailboxes, thread_coords(batch), 0, 0), threadIdx.x);
    bool timed_out = false;
    int buffer = 0;
    for (int t = 0; t < params.steps && !timed_out; t++) {
#pragma unroll 1
        for (int tile = 0; tile < tiles && !timed_out; tile++) {
            const Thread thread = thread_coords(batch);
            const bool is_last = tile + 1 == tiles, is_published = t + 1 < params.steps;
            States& states = shared.states[buffer];
            jitter(t, 0);
            if (!BUFFERS && (t > 0 || params.h0)) timed_out = !receive_states(receiver, states, mailboxes, thread, t, tile);
            jitter(t, 1);
            named_barrier_sync(NamedBarrier::StatesFull + buffer, BLOCK_THREADS);
            if (BUFFERS) timed_out = *(volatile int*)&shared.timed_out[buffer];
            else
                receiver.prefetch_first(state_mailbox(mailboxes, thread, is_last ? t + 1 : t, is_last ? 0 : tile + 1),
                                        thread.number);
            jitter(t, 2);
            mma_recurrent(shared.sums, 0, weights, thread, thread_b_ptr(states, thread.warp % K_PARTITIONS, thread.lane));
            const GateOperands operands(shared.pointwise, inputs, thread, tile, params.step(t));
            named_barrier_sync(NamedBarrier::ComputeSynced, THREADS);
            jitter(t, 3);
            const auto sums_of_state = [&](int s) { return shared.sums.reduce(0, thread, s); };
            const StepResult result(shared.pointwise, sums_of_state, operands, thread, tile, states, shared.own);
            if (BUFFERS)
                named_barrier_arrive(NamedBarrier::StatesEmpty + buffer, BLOCK_THREADS),
                    named_barrier_sync(NamedBarrier::ComputeSynced, THREADS);
            else timed_out = __syncthreads_or(timed_out);
            jitter(t, 4);
            if (is_published && !timed_out)
                publish_states(shared.own, state_mailbox(mailboxes, thread, t + 1, tile), thread, t + 2);
            result.write(pointers, operands, tile);
            if (!is_published) result.write_final(params, shared.pointwise, operands, thread, tile);
            pointers.advance(is_last);
            load_next_inputs(inputs, pointers, params, tiles, tile, t);
            buffer = buffer + 1 < BUFFERS ? buffer + 1 : 0;
        }
    }
    return !timed_out;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) persistent_forward(const __grid_constant__ Params params) {
    input_gemm<Config, BLOCK_THREADS>(params);
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const Thread first = thread_coords(params.batch);
    const int tiles = num_tiles(first);
    zero_smem(&shared, sizeof(shared.states) + sizeof(OutgoingStates));
    if (threadIdx.x < 2) shared.timed_out[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        if (MMA_REGISTERS) warpgroup_reg_dealloc<LOAD_REGISTERS>();
        run_load_warps(shared, params.mailboxes, first, params.steps, tiles, params.h0);
        return;
    }
    if (MMA_REGISTERS) warpgroup_reg_alloc<MMA_REGISTERS>();
    load_biases_and_carry(shared.pointwise, params, first);
    for (int tile = 0; params.h0 && tile < tiles; tile++) {
        load_own_initial_state(shared.own, params, first, tile);
        named_barrier_sync(NamedBarrier::ComputeSynced, THREADS);
        publish_states(shared.own, state_mailbox(params.mailboxes, first, 0, tile), first, 1);
        named_barrier_sync(NamedBarrier::ComputeSynced, THREADS);
    }
    jitter(-1, 5);
    Weights weights(shared.weight_storage, params.weight_stream, first.first_unit / UNITS,
                    [&](int s, int i) { return load_a_fragment(params.weight_hh, first, s, i); });
    named_barrier_sync(NamedBarrier::ComputeSynced, THREADS);
    if (!run_compute_warps(shared, params, weights)) {
        const Thread thread = thread_coords(params.batch);
        *(volatile int*)params.status = 1;
        write_nan(params, thread, num_tiles(thread));
    }
    if (Weights::STREAMED_PASSES > 0) weights.drain();
}
