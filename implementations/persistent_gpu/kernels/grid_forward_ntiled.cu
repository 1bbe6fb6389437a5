// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in one
//   launch, as cluster_forward.cu, for W_hh that does not fit in a cluster or takes longer with one: it stays in the registers
//   and shared memory of as many multiprocessors as there are. What does not fit there is streamed by all of them.
// Layout: as cluster_forward.cu, weight_stream of all groups' ranks, and
//   mailboxes [tiles of all groups, 2, N_TILES, PACKET_SLOTS_PER_N_TILE] of 16 bytes, read and written: all 0 before the
//   launch. A packet holds a part of what a block publishes of a sequence, with the epoch t + 1 for parts of h_t
//   (ll_b_fragments.cuh).
//   No two may alias. Alignment: of the element; weight_hh: LOAD_BYTES bytes; weight_stream, mailboxes: 16 bytes.
// Launch: cooperative, all blocks at once: a group of BLOCKS blocks for each TILES tiles of 8 * N_TILES sequences, independent
//   of the other groups; block r of a group owns UNITS hidden units from r * UNITS. Each of its 8 warps multiplies all rows of
//   these by an eighth of the columns, and computes an eighth of their states. PRESPLIT_FRAGMENTS of a warp's fragments of
//   float32 are split for 3xTF32 once, when they are loaded, and count twice. SEQUENCES of a tile are published: all, or as
//   many as there are at all. Shared bytes: the host's shared_bytes (config.py).
// Cost: reads G H^2 + T B G H values, writes T B H; 2 T B G H^2 operations. Each block reads 4/3 H values of each sequence a
//   step, of TF32 2/3, and more where UNITS do not fill their packets, and what it streams of its rows of W_hh, once a tile of
//   8 * N_TILES sequences. Of an input product as cluster_forward.cu, for a group in place of a cluster.
// Limits: compute capability 8.0; nothing is streamed with PRESPLIT_FRAGMENTS; T, B, G * H below 2^30, as cluster_forward.cu;
//   offsets 64-bit.
// Order: 1. A packet is stored and loaded as one (ld_st_128.cuh), so one whose epoch is valid is valid as a whole.
//   2. h_(t+1) of a tile overwrites h_(t-1): its producer has passed a barrier of its block after all its warps had loaded h_t,
//      each part of which was stored by a block that had passed a barrier after all its warps had loaded h_(t-1).
//   3. So no consumer still needs what is overwritten, and one that polls sees the epoch that it waits for, or that of two
//      steps before, or 0.
//   4. Accumulators of a warp are stored before that barrier and loaded after it, and overwritten after the next one, or with
//      SUM_BUFFERS 1 after one more that follows the product. A warp publishes what its own lanes have computed.
//   5. A wait that takes WATCHDOG_NS times out: all threads of its block return at their barrier, and so, in turn, do all
//      blocks of the group.
//   6. Sums are taken in one order: bit-equal repeats.
//   7. Of an input product a block's threads read what the same block wrote, with a barrier in between.
#include "ecornn/common/jitter.cuh"
#include "input_gemm.cuh"
#include "ll_b_fragments.cuh"

typedef PacketConfig Config;
constexpr int TILE_BATCH = Config::TILE_BATCH, STATES_PER_THREAD = Config::STATES_PER_THREAD;

// Recomputed at each call where registers are few, so that what follows from it takes none in between.
__device__ inline Thread thread_coords(int batch) {
    unsigned number = threadIdx.x, block = blockIdx.x;
    if (8 * REG_FRAGMENTS + 4 * N_TILES * (M_TILES_PER_WARP + PACKETS_IN_REGISTERS) > 130)
        opaque(number), opaque(block);  // registers are few
    number %= THREADS;
    return {(int)number,           (int)(number / 32), (int)(number % 32), (int)(block % BLOCKS * UNITS),
            (int)(block / BLOCKS * TILES * TILE_BATCH), batch};
}

__device__ inline int num_tiles(const Thread& thread) {
    return min(TILES, (thread.batch - thread.first_sequence + TILE_BATCH - 1) / TILE_BATCH);
}

// Packets of h_t of a tile.
__device__ inline uint4* state_mailbox(uint4* mailboxes, const Thread& thread, int t, int tile) {
    return mailboxes + (index)((thread.first_sequence / TILE_BATCH + tile) * 2 + t % 2) * N_TILES * PACKET_SLOTS_PER_N_TILE;
}

// Gate inputs of each thread. They are in registers only until the product begins, which needs these registers.
struct StagedInputs {
    unsigned data[STATES_PER_THREAD][GATES][THREADS];
    __device__ void store(const GateInputs<Config>& inputs) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++)
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) data[s][gate][threadIdx.x] = inputs.data[s][gate];
    }
    __device__ float at(int s, int gate) const { return widen_bits(data[s][gate][threadIdx.x]); }
};

struct SharedStorage {
    OutgoingStates own[TILES];
    StagedInputs inputs;
    SumStorage<SUM_BUFFERS, TILE_BATCH, UNITS, SEQUENCES> sums;
    PointwiseStorage<Config> pointwise;
    WeightStorage weight_storage;
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "Resources.shared_bytes");

struct Params : DenseParams {
    uint4 *mailboxes, *weight_stream;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

__device__ inline void publish_initial_states(OutgoingStates& own, const Params& params, const Thread& thread, int tile) {
    load_own_initial_state(own, params, thread, tile);
    __syncwarp();
    own.publish(state_mailbox(params.mailboxes, thread, 0, tile), thread, 1);
}

// Computes, publishes and writes the states of every tile and step. False on a timeout.
__device__ inline bool run_steps(SharedStorage& shared, const Params& params, Weights& weights) {
    uint4* const mailboxes = params.mailboxes;
    const int batch = params.batch;
    const int tiles = num_tiles(thread_coords(batch));
    StatePointers pointers(params, thread_coords(batch), tiles);
    GateInputs<Config> inputs = {};
    inputs.load(params, pointers, 0, 0);
    PacketBFragments packets;
    if (TILES > 1) packets.prefetch(state_mailbox(mailboxes, thread_coords(batch), 0, 0), thread_coords(batch));
    int buffer = 0;
    for (int t = 0; t < params.steps; t++) {
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const Thread thread = thread_coords(batch);
            const bool is_last = tile + 1 == tiles, is_published = t + 1 < params.steps;
            OutgoingStates& own = shared.own[tile];
            Accumulator sums[M_TILES_PER_WARP][N_TILES] = {};
            bool timed_out = false;
            jitter(t, 0);
            if (TILES == 1) packets.prefetch(state_mailbox(mailboxes, thread, t, tile), thread);
            const auto stage = [&] { shared.inputs.store(inputs); };
            if (t > 0 || params.h0)
                timed_out =
                    !packets.mma_from_packets(sums, weights, state_mailbox(mailboxes, thread, t, tile), thread, t + 1, stage);
            else stage();
            if (TILES > 1) packets.prefetch(state_mailbox(mailboxes, thread, t + is_last, is_last ? 0 : tile + 1), thread);
            jitter(t, 1);
            if (SUM_BUFFERS == 1) __syncthreads();
            shared.sums.store(buffer, thread, [&](int i, int n) -> const Accumulator& { return sums[i][n]; });
            const GateOperands operands(shared.pointwise, shared.inputs, thread, tile, params.step(t));
            if (__syncthreads_or(timed_out)) return false;
            jitter(t, 2);
            const auto sums_of_state = [&](int s) { return shared.sums.reduce(buffer, thread, s); };
            const StepResult result(shared.pointwise, sums_of_state, operands, thread, tile, own, own);
            __syncwarp();
            jitter(t, 3);
            if (is_published) own.publish(state_mailbox(mailboxes, thread, t + 1, tile), thread, t + 2);
            result.write(pointers, operands, tile);
            if (!is_published) result.write_final(params, shared.pointwise, operands, thread, tile);
            pointers.advance(is_last);
            load_next_inputs(inputs, pointers, params, tiles, tile, t);
            buffer = (buffer + 1) % SUM_BUFFERS;
        }
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) persistent_forward(const __grid_constant__ Params params) {
    const Params values = params;  // of which fewer are spilled, where weights fill the registers, than of the parameter
    input_gemm<Config, THREADS>(values);
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const Thread first = thread_coords(values.batch);
    zero_smem(&shared.own, sizeof(shared.own));
    load_biases_and_carry(shared.pointwise, values, first);
    __syncthreads();
    for (int tile = 0; values.h0 && tile < num_tiles(first); tile++)
        publish_initial_states(shared.own[tile], values, first, tile);
    jitter(-1, 5);
    Weights weights(shared.weight_storage, values.weight_stream, first.first_unit / UNITS, [&](int pass, int i) {
        return load_resident_fragment(values.weight_hh, first, k_tile_of_pass(pass) * M_TILES_PER_PASS + i);
    });
    __syncthreads();
    if (!run_steps(shared, values, weights)) {
        const Thread thread = thread_coords(values.batch);
        *(volatile int*)values.status = 1;
        write_nan(values, thread, num_tiles(thread));
    }
    if (Weights::STREAMED_PASSES > 0) weights.drain();
}
