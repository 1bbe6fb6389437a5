// Maths: the backward pass of cluster_forward.cu, CELL, all T steps of one layer and direction in one launch, as
//   cluster_backward.cu, for W_hh that does not fit in a cluster: it stays in the registers and shared memory of as many
//   multiprocessors as there are. What does not fit there is streamed by all of them.
// Layout: as cluster_backward.cu, weight_stream of all groups' ranks, and
//   mailboxes [tiles of all groups, 2] of [GRID_COLS, GRID_ROWS, Gradients::PACKETS] and [BLOCKS, GRID_COLS, SUM_PACKETS], of
//   16 bytes, read and written: all 0 before the launch. A packet has the epoch i + 1, of the i-th step backward. It holds a
//   part of a block's gate gradients, sequence by sequence, or partial sums, in float32, of a block for another.
//   No two may alias. Alignment: of the element; weight_stream, mailboxes: 16 bytes.
// Launch: cooperative, all blocks at once: a group of BLOCKS = GRID_ROWS * GRID_COLS blocks for each TILES tiles of 8
//   sequences, independent of the other groups; block r of a group, in row r / GRID_COLS and column r % GRID_COLS, owns UNITS
//   hidden units from r * UNITS. It multiplies the gradients of the gates of its column's units by W_hh^T's rows of its row's
//   units, a part of their sums, which are published to the unit's block and added there. Its 8 warps are K_PARTITIONS
//   partitions of K by groups of rows. N_TILES tiles are multiplied at once, so that each weight is read once for all.
//   SEQUENCES of a tile are published, 8 or as many as there are at all. Shared bytes: the host's shared_bytes (config.py).
// Cost: as cluster_backward.cu; between blocks each reads 4/3 B H (G / GRID_COLS values, of TF32 half of that, + 4 bytes
//   / GRID_ROWS) a step, and what it streams of its part of W_hh, once for N_TILES tiles; it writes as many
//   sums.
// Limits: compute capability 8.0; UNITS a multiple of 2; T, B, G * H below 2^30; offsets 64-bit.
// Order: 1. A packet is stored and loaded as one (ld_st_128.cuh), so one whose epoch is valid is valid as a whole.
//   2. Gradients of step i + 2 of a tile overwrite those of i: their producer has received those of i + 1 of its whole column,
//      whose blocks had multiplied those of i before, by all their threads.
//   3. Sums of i + 2 overwrite those of i: their producer has received those of i + 1 of its whole row, whose blocks had added
//      those of i before.
//   4. So a consumer that polls sees the epoch that it waits for, that of two steps before, or 0.
//   5. In a block a barrier is between receiving sums and adding them, gates and publishing, receiving gradients and the
//      product, sums and publishing: between two uses of one buffer in shared memory are two of the four, or the next tile's
//      first. Of N_TILES tiles one more is between publishing one's sums and storing the next one's.
//   6. A wait that takes WATCHDOG_NS times out: the whole block returns at the next of them, and so, in turn, do all blocks.
//   7. Sums are added in one order: bit-equal repeats.
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/common/jitter.cuh"
#include "ecornn/rnn/pointwise_backward.cuh"
#include "ecornn/rnn/rnn_cell.cuh"
#include "ll_state_packets.cuh"
#include "transposed_load.cuh"
#include "warp_mma.cuh"

constexpr int BLOCKS = GRID_ROWS * GRID_COLS, OWN_GATES = GATES * UNITS;
constexpr int K_TILES_PER_WARP = ceil_div(OWN_GATES * GRID_ROWS, K_TILE * K_PARTITIONS);
constexpr int M_TILES_PER_WARP = ceil_div(UNITS * GRID_COLS * K_PARTITIONS, 16 * WARPS);
constexpr int ROWS = M_TILES_PER_WARP * 16 * WARPS / K_PARTITIONS;
constexpr int SUM_PACKETS = ceil_div(SEQUENCES * UNITS, 3);  // of a block for another
constexpr int PACKETS_PREFETCHED = TILES == 1 || USE_3XTF32 ? 0 : 4;  // of a thread, while the tile before is computed
typedef BTile<K_TILES_PER_WARP> States;
typedef ResidentWeights<M_TILES_PER_WARP * K_TILES_PER_WARP, TRANSPOSED_LOADS_IN_FLIGHT> Weights;

struct ThreadCoords {
    static constexpr int TILE_BATCH = 8, NUM_THREADS = THREADS, STATES_PER_THREAD = ceil_div(UNITS * TILE_BATCH, THREADS);
    int number, warp, lane, rank, first_sequence, batch;
    __device__ int row() const { return rank / GRID_COLS; }
    __device__ int across() const { return rank % GRID_COLS; }
    __device__ int local_unit(int state) const { return (number + state * THREADS) % UNITS; }
    __device__ int sequence_in_tile(int state) const { return (number + state * THREADS) / UNITS; }
    __device__ int unit(int state) const { return rank * UNITS + local_unit(state); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * 8 + sequence_in_tile(state); }
    __device__ bool is_inside(int tile, int state) const {
        return sequence_in_tile(state) < SEQUENCES && unit(state) < HIDDEN && sequence(tile, state) < batch;
    }
};

typedef OutgoingTile<OWN_GATES> Gradients;

struct SharedStorage {
    States columns[N_TILES];  // gradients of the gates of its column's units
    Gradients own;
    float sums[K_PARTITIONS][8][ROWS + 4];  // by sequences, so far apart that banks differ
    float received_sums[GRID_COLS * SUM_PACKETS * 3];  // of all blocks of the row
    GradientCarry<ThreadCoords> carry;
    WeightStorage weight_storage;
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "Resources.shared_bytes");

// Recomputed at each call, so that what follows from it takes no registers in between.
__device__ inline ThreadCoords thread_coords(int batch) {
    unsigned number = threadIdx.x, block = blockIdx.x;
    opaque(number), opaque(block);
    number %= THREADS;
    return {(int)number, (int)(number / 32), (int)(number % 32), (int)(block % BLOCKS), (int)(block / BLOCKS * TILES * 8),
            batch};
}

// Packets of the i-th step of a tile: gradients column by column of blocks, sums block by block.
__device__ inline uint4* gradient_mailbox(uint4* mailboxes, const ThreadCoords& thread, int i, int tile) {
    const index each = BLOCKS * (Gradients::PACKETS + GRID_COLS * SUM_PACKETS);
    return mailboxes + ((thread.first_sequence / 8 + tile) * 2 + i % 2) * each;
}
__device__ inline uint4* sum_mailbox(uint4* mailboxes, const ThreadCoords& thread, int i, int tile) {
    return gradient_mailbox(mailboxes, thread, i, tile) + BLOCKS * Gradients::PACKETS;
}

// Rows are the units of the block's row, columns the gates of those of its column, after which comes what is no block's unit.
__device__ inline AFragment load_a_fragment(const scalar_t* weight, const ThreadCoords& thread, int s, int i) {
    const int first = thread.row() * GRID_COLS * UNITS;
    const int r = (thread.warp / K_PARTITIONS * M_TILES_PER_WARP + i) * 16 + thread.lane / 4;
    const int k = (thread.warp % K_PARTITIONS * K_TILES_PER_WARP + s) * K_TILE + thread.lane % 4 * ELEMENTS_PER_VECTOR;
    return load_a_transposed<UNITS % 4 == 0 ? 4 : 2>(weight, first + r, min(first + GRID_COLS * UNITS, HIDDEN), [&](int i) {
        const int from = (k + i) / OWN_GATES, gate = (k + i) % OWN_GATES / UNITS;
        return WeightRow{gate, (from * GRID_COLS + thread.across()) * UNITS + (k + i) % UNITS};
    });
}

// The block's part of the sums of its row's units, of N_TILES tiles.
struct PartialSums {
    Accumulator data[M_TILES_PER_WARP][N_TILES];

    __device__ PartialSums(const SharedStorage& shared, Weights& weights, const ThreadCoords& thread) : data() {
        const uint4* columns = thread_b_ptr(shared.columns[0], thread.warp % K_PARTITIONS, thread.lane);
        if constexpr (N_TILES == 1) mma_mainloop<0, K_TILES_PER_WARP>((Accumulator(&)[M_TILES_PER_WARP])data, weights, columns);
        else mma_mainloop_ntiled<K_TILES_PER_WARP>(data, weights, columns, sizeof(States) / sizeof(uint4));
    }

    // Stores those of the n-th tile, to be read after a barrier.
    __device__ void store(SharedStorage& shared, const ThreadCoords& thread, int n) const {
        const int group = thread.warp % K_PARTITIONS;
#pragma unroll
        for (int i = 0; i < M_TILES_PER_WARP * 2; i++) {
            const int r = (thread.warp / K_PARTITIONS * M_TILES_PER_WARP * 2 + i) * 8 + thread.lane / 4;
            for (int next = 0; next < 2; next++)
                shared.sums[group][thread.lane % 4 * 2 + next][r] = data[i / 2][n].data[i % 2 * 2 + next];
        }
    }
};

// Publishes to each block of the row the sums of its units. mailbox: of the tile and step.
__device__ inline void publish_partial_sums(const SharedStorage& shared, uint4* mailbox, const ThreadCoords& thread,
                                            unsigned epoch) {
    for (int p = thread.number; p < GRID_COLS * SUM_PACKETS; p += THREADS) {
        const int to = p / SUM_PACKETS, first = p % SUM_PACKETS * 3;
        float sums[3] = {};
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const int column = (first + i) / UNITS, r = to * UNITS + (first + i) % UNITS;
            if (SEQUENCES * UNITS % 3 && column >= SEQUENCES) continue;
#pragma unroll
            for (int group = 0; group < K_PARTITIONS; group++) sums[i] += shared.sums[group][column][r];
        }
        uint4* slot = mailbox + ((thread.row() * GRID_COLS + to) * GRID_COLS + thread.across()) * SUM_PACKETS + p % SUM_PACKETS;
        st_relaxed_b128(slot, {__float_as_uint(sums[0]), __float_as_uint(sums[1]), __float_as_uint(sums[2]), epoch});
    }
}

// Receives what the blocks of the row publish of the i-th step of a tile, into shared memory.
struct SumReceiver {
    PacketReader<LL16Packet, GRID_COLS * SUM_PACKETS, PACKETS_PREFETCHED, THREADS> reader;
    __device__ static const uint4* mailbox(uint4* mailboxes, const ThreadCoords& thread, int i, int tile) {
        return sum_mailbox(mailboxes, thread, i, tile) + thread.rank * GRID_COLS * SUM_PACKETS;
    }
    __device__ void prefetch(uint4* mailboxes, const ThreadCoords& thread, int i, int tile) {
        reader.prefetch_first(mailbox(mailboxes, thread, i, tile), thread.number);
    }
    // False on a timeout.
    __device__ bool receive(SharedStorage& shared, uint4* mailboxes, const ThreadCoords& thread, int i, int tile) {
        return reader.receive(
            mailbox(mailboxes, thread, i, tile), thread.number, i + 1, [&](unsigned index, const uint4& packet) {
                float* sums = shared.received_sums + index * 3;
                sums[0] = __uint_as_float(packet.x), sums[1] = __uint_as_float(packet.y), sums[2] = __uint_as_float(packet.z);
            });
    }
};

// Receives likewise what the blocks of the column publish.
struct GradientReceiver {
    static constexpr int NUM_PACKETS = GRID_ROWS * Gradients::PACKETS;
    PacketReader<Gradients::Packet, NUM_PACKETS, PACKETS_PREFETCHED, THREADS> reader;
    __device__ static const uint4* mailbox(uint4* mailboxes, const ThreadCoords& thread, int i, int tile) {
        return gradient_mailbox(mailboxes, thread, i, tile) + thread.across() * NUM_PACKETS;
    }
    __device__ void prefetch(uint4* mailboxes, const ThreadCoords& thread, int i, int tile) {
        reader.prefetch_first(mailbox(mailboxes, thread, i, tile), thread.number);
    }
    __device__ bool receive(States& columns, uint4* mailboxes, const ThreadCoords& thread, int i, int tile) {
        return reader.receive(
            mailbox(mailboxes, thread, i, tile), thread.number, i + 1,
            [&](unsigned index, const uint4& packet) { Gradients::unpack_into(columns, index, packet); });
    }
    // Likewise of up to N_TILES tiles from `tile` on.
    __device__ bool receive_all(SharedStorage& shared, uint4* mailboxes, const ThreadCoords& thread, int i, int tile,
                                int tiles) {
        for (int n = 0; n < N_TILES - 1; n++) {
            if (tile + n + 1 >= tiles) return receive(shared.columns[n], mailboxes, thread, i, tile + n);
            if (!receive(shared.columns[n], mailboxes, thread, i, tile + n)) return false;
            prefetch(mailboxes, thread, i, tile + n + 1);
        }
        return receive(shared.columns[N_TILES - 1], mailboxes, thread, i, tile + N_TILES - 1);
    }
};

// Adds what all blocks of the row have published of a state to `sum`.
__device__ inline float add_partial_sums(float sum, const SharedStorage& shared, const ThreadCoords& thread, int s) {
    const float* place = shared.received_sums + thread.sequence_in_tile(s) * UNITS + thread.local_unit(s);
#pragma unroll
    for (int from = 0; from < GRID_COLS; from++) sum += place[from * SUM_PACKETS * 3];
    return sum;
}

// The i-th step backward of the block's own units of a tile, once the sums of the step before are full; after the last step
// the gradients of the initial states.
__device__ inline void pointwise_backward_units(SharedStorage& shared, const BackwardParams& params,
                                                const GateInputs<ThreadCoords>& inputs, const ThreadCoords& thread, int tile,
                                                int i) {
#pragma unroll
    for (int s = 0; s < ThreadCoords::STATES_PER_THREAD; s++) {
        if (thread.sequence_in_tile(s) >= SEQUENCES) continue;
        const float carry = shared.carry.d_h[tile][s][thread.number];
        const float d_h = i > 0 ? add_partial_sums(carry, shared, thread, s) : carry;
        if (i == params.steps) {
            store_initial_state_gradients(shared.carry, params, thread, tile, s, d_h);
            continue;
        }
        const int end = shared.carry.ends[tile][thread.sequence_in_tile(s)];
        const bool is_active = thread.is_inside(tile, s) && params.time(i) < end;
        const LocalGradients local_gradients = inputs.local_gradients(params, thread, tile, s, params.time(i + 1), end);
        const float all_d_h = d_h + (is_active ? widen_bits(inputs.d_output[s]) : 0);
        const auto publish = [&](int gate, scalar_t gradient) {
            shared.own.at(gate * UNITS + thread.local_unit(s), thread.sequence_in_tile(s)) = gradient;
        };
        pointwise_backward(shared.carry, params, local_gradients, thread, tile, s, i, all_d_h, publish);
    }
}

struct Params : BackwardParams {
    const scalar_t* weight_hh;
    uint4 *mailboxes, *weight_stream;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

extern "C" __global__ void __launch_bounds__(THREADS, 1) persistent_backward(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    uint4* const mailboxes = params.mailboxes;
    const int steps = params.steps, batch = params.batch;
    const ThreadCoords first = thread_coords(batch);
    const int tiles = min(TILES, (batch - first.first_sequence + 7) / 8);
    zero_smem(&shared, sizeof(shared.columns) + sizeof(Gradients));
    shared.carry.load(params, first);
    Weights weights(shared.weight_storage, params.weight_stream, first.rank,
                    [&](int s, int i) { return load_a_fragment(params.weight_hh, first, s, i); });
    __syncthreads();
    bool timed_out = false;
    for (int i = 0; i <= steps && !timed_out; i++) {
        SumReceiver sums;
        if (i > 0) sums.prefetch(mailboxes, thread_coords(batch), i - 1, 0);
#pragma unroll 1
        for (int tile = 0; tile < tiles && !timed_out; tile++) {
            const ThreadCoords thread = thread_coords(batch);
            GateInputs<ThreadCoords> inputs = {};
            if (i < steps) inputs.load(params, thread, tile, i);
            jitter(i, 0);
            if (i > 0) timed_out = !sums.receive(shared, mailboxes, thread, i - 1, tile);
            timed_out = __syncthreads_or(timed_out);
            if (timed_out) continue;
            if (i > 0 && tile + 1 < tiles) sums.prefetch(mailboxes, thread, i - 1, tile + 1);
            pointwise_backward_units(shared, params, inputs, thread, tile, i);
            jitter(i, 1);
            __syncthreads();
            jitter(i, 2);
            const int place = thread.across() * GRID_ROWS + thread.row();
            if (i < steps)
                shared.own.publish(gradient_mailbox(mailboxes, thread, i, tile) + place * Gradients::PACKETS, thread.number,
                                   i + 1);
            if (i + 1 < steps) inputs.prefetch(params, thread, tile, i + 1);
        }
        if (i == steps || timed_out) continue;
        GradientReceiver gradients;
        gradients.prefetch(mailboxes, thread_coords(batch), i, 0);
#pragma unroll 1
        for (int tile = 0; tile < tiles && !timed_out; tile += N_TILES) {
            const ThreadCoords thread = thread_coords(batch);
            timed_out = __syncthreads_or(!gradients.receive_all(shared, mailboxes, thread, i, tile, tiles));
            if (timed_out) continue;
            if (tile + N_TILES < tiles) gradients.prefetch(mailboxes, thread, i, tile + N_TILES);
            jitter(i, 3);
            const PartialSums sums(shared, weights, thread);
#pragma unroll
            for (int n = 0; n < N_TILES; n++) {
                if (n > 0 && tile + n >= tiles) continue;
                if (n > 0) __syncthreads();
                sums.store(shared, thread, n);
                __syncthreads();
                jitter(i, 4);
                publish_partial_sums(shared, sum_mailbox(mailboxes, thread, i, tile + n), thread, i + 1);
            }
        }
    }
    if (Weights::STREAMED_PASSES > 0) weights.drain();
    if (!timed_out) return;
    *(volatile int*)params.status = 1;
    for (int tile = 0; tile < tiles; tile++) write_nan(params, thread_coords(batch), tile);
}
