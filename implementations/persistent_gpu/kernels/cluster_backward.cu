// Maths: the backward pass of cluster_forward.cu, CELL, all T steps of one layer and direction in one launch: from the last
//   step to the first, dh = d_output + W_hh^T d_gates of the step after, d_gates from dh and what the forward pass saved.
// Layout: of Params (BackwardParams and below), by field:
//   saved_gates [rows, 4*H] scalar_t, saved_cells [rows, H] float, read: as cluster_forward.cu wrote them
//   output, d_output [T, B, H] scalar_t, read: element (t, b, h) at t * NAME_step + b * NAME_sequence + h
//   weight_hh [G*H, H] scalar_t, read. h0, c0, d_h_n, d_c_n [B, H] scalar_t, read, null for zeros
//   lengths [B] int64, read, null for none: a step at which a sequence is over passes gradients on
//   d_gates [rows, G*H] scalar_t, written: with respect to W_ih x. d_recurrent [rows, H] scalar_t, written by GRU: to W_hn h
//   d_h0, d_c0 [B, H] scalar_t, written, the latter by LSTM only. weight_stream and status as in cluster_forward.cu
//   No two may alias. Alignment: of the element; weight_stream: 16 bytes.
// Launch: clusters, units and sequences as in cluster_forward.cu; 8 warps, all alike. A block multiplies the gradients of its
//   own gates, which do not leave it, by rows of W_hh^T, those of all units. Each warp has M_TILES_PER_WARP tiles of 16 of
//   these rows, M_TILES_PER_PASS of them at once, so that their sums are sent while others are multiplied. Shared bytes: the
//   host's shared_bytes (config.py).
// Cost: reads G H^2 + T B S H values, S being 9 (LSTM, c in float counting twice), 6 (GRU), 2 (RNN), writes T B G H (GRU: 4 H);
//   2 T B G H^2 operations. Between blocks 4 B H bytes a step and block.
// Limits: as cluster_forward.cu; UNITS a multiple of 16, so that a row tile's sums are all of one block's units; BLOCKS 2 at
//   least, as a block that is a cluster alone may not send to itself.
// Order: 1. Sums of step i of a tile are sent to buffer i % 2 of the units' block by st.async and waited for by their bytes.
//   2. Sums have no empty barrier. To have all sums of i + 1 is the proof that those of i may be overwritten:
//   3. Each block sent its sums of i + 1 after its barrier of that tile and step, and all its threads had added those of i
//      before.
//   4. Gate buffers alternate from one tile to the next: a thread that writes one passed the barrier of the tile before, at
//      which every warp arrives after it has multiplied the gates of the one before that.
//   5. A wait that takes WATCHDOG_NS times out. All threads of its block learn it at the next barrier and send nothing more.
//   6. So its peers miss bytes and time out in turn. Results of these blocks are NaN, and status is 1.
//   7. Sums are added in the order of blocks: bit-equal repeats.
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/common/jitter.cuh"
#include "ecornn/ptx/cluster.cuh"
#include "ecornn/ptx/mbarrier.cuh"
#include "ecornn/rnn/pointwise_backward.cuh"
#include "ecornn/rnn/rnn_cell.cuh"
#include "resident_weights.cuh"
#include "transposed_load.cuh"

constexpr int K_TILES_PER_WARP = ceil_div(GATES * UNITS, K_TILE);  // of the block's gates
constexpr int M_TILES_PER_WARP = ceil_div(UNITS * BLOCKS, 16 * WARPS);  // of 16 units
constexpr int SUM_TILE_BYTES = UNITS * 8 * 4;  // of a block, to each block
typedef ResidentWeights<M_TILES_PER_WARP * K_TILES_PER_WARP, TRANSPOSED_LOADS_IN_FLIGHT> Weights;

// A warp has 16 units of two sequences at once.
struct ThreadCoords {
    static constexpr int TILE_BATCH = 8, NUM_THREADS = THREADS, STATES_PER_THREAD = ceil_div(UNITS * TILE_BATCH, THREADS);
    int number, warp, lane, first_unit, first_sequence, batch;
    __device__ int local_unit(int state) const { return (number + state * THREADS) / 128 * 16 + number % 16; }
    __device__ int sequence_in_tile(int) const { return number / 16 % 8; }
    __device__ int unit(int state) const { return first_unit + local_unit(state); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * 8 + sequence_in_tile(state); }
    __device__ bool is_inside(int tile, int state) const {
        return local_unit(state) < UNITS && unit(state) < HIDDEN && sequence(tile, state) < batch;
    }
    // The i-th of this warp's tiles of rows, which are all units. Each block begins with its own units, so that no two send to
    // the same block at once.
    __device__ int row_tile(int i) const {
        const int row_tile = first_unit / 16 + warp * M_TILES_PER_WARP + i;
        return row_tile < WARPS * M_TILES_PER_WARP ? row_tile : row_tile - WARPS * M_TILES_PER_WARP;
    }
};

constexpr int STATES_PER_THREAD = ThreadCoords::STATES_PER_THREAD;

struct SharedStorage {
    // Full barrier of sums[buffer][tile]: one arrival, and the bytes of all blocks. Padded to 128 bytes.
    unsigned long long barriers[2][8];
    float sums[2][TILES][BLOCKS][UNITS / 16][32][4];  // a lane's four are adjacent; lanes by lane_slot
    scalar_t gates[2][K_TILES_PER_WARP][8][K_TILE];
    GradientCarry<ThreadCoords> carry;
    WeightStorage weight_storage;
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "Resources.shared_bytes");
static_assert(BLOCKS > 1, "a block sends to itself");

// Index of a lane (g, t) among the sums: banks differ for adjacent lanes, which write at once, and for those of one t, whose
// sums a warp reads at once.
__device__ inline int lane_slot(int g, int t) { return t * 8 + (g + 2 * t) % 8; }

// Rows are all units, columns the gates of the block's own units.
__device__ inline AFragment load_a_fragment(const scalar_t* weight, const ThreadCoords& thread, int pass, int i) {
    const int u = thread.row_tile(pass / K_TILES_PER_WARP * M_TILES_PER_PASS + i) * 16 + thread.lane / 4;
    const int k = pass % K_TILES_PER_WARP * K_TILE + thread.lane % 4 * ELEMENTS_PER_VECTOR, gate = k / UNITS;
    const WeightRow row = {gate, gate < GATES ? thread.first_unit + k % UNITS : HIDDEN};
    return load_a_transposed<ELEMENTS_PER_VECTOR>(weight, u, HIDDEN, [&](int) { return row; });
}

// Adds the partial sums that all blocks have sent of a state to `sum`.
__device__ inline float add_partial_sums(float sum, const SharedStorage& shared, const ThreadCoords& thread, int tile, int s,
                                         int buffer) {
    const int row = thread.local_unit(s) % 16, column = thread.sequence_in_tile(s);
    const float* place = shared.sums[buffer][tile][0][thread.local_unit(s) / 16][lane_slot(row % 8, column / 2)];
#pragma unroll
    for (int from = 0; from < BLOCKS; from++) sum += place[from * UNITS * 8 + row / 8 * 2 + column % 2];
    return sum;
}

// Sends a row tile's sums to the block whose units they are.
__device__ inline void send_sums(SharedStorage& shared, const ThreadCoords& thread, const Accumulator& sums, int row_tile,
                                 int tile, int buffer) {
    const int to = row_tile / (UNITS / 16);
    if (M_TILES_PER_WARP * WARPS * 16 > UNITS * BLOCKS && to >= BLOCKS) return;
    const smem_addr_t place = smem_addr(shared.sums[buffer][tile][thread.first_unit / UNITS][row_tile % (UNITS / 16)]);
    const uint4 all = {__float_as_uint(sums.data[0]), __float_as_uint(sums.data[1]), __float_as_uint(sums.data[2]),
                       __float_as_uint(sums.data[3])};
    st_async(map_shared_rank(place + lane_slot(thread.lane / 4, thread.lane % 4) * 16, to), all,
             map_shared_rank(smem_addr(&shared.barriers[buffer][tile]), to));
}

__device__ inline void mma_and_send(SharedStorage& shared, Weights& weights, const ThreadCoords& thread, int tile,
                                    int gate_buffer, int buffer) {
    const uint4* b_ptr = (const uint4*)shared.gates[gate_buffer] + thread.lane;
    Accumulator sums[M_TILES_PER_PASS] = {};
    jitter(buffer, 0);
    weights.for_each_pass([&](int pass, auto fragment) {
        const int k_tile = pass % K_TILES_PER_WARP;
        const BFragment b = make_b_fragment(b_ptr[k_tile * 32]);
#pragma unroll
        for (int i = 0; i < M_TILES_PER_PASS; i++) mma_k_tile(sums[i], fragment(i), b);
        if (k_tile + 1 < K_TILES_PER_WARP) return;
#pragma unroll
        for (int i = 0; i < M_TILES_PER_PASS; i++) {
            send_sums(shared, thread, sums[i], thread.row_tile(pass / K_TILES_PER_WARP * M_TILES_PER_PASS + i), tile, buffer);
            sums[i] = {};
        }
    });
}

struct Params : BackwardParams {
    const scalar_t* weight_hh;
    uint4* weight_stream;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
    persistent_backward(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const int thread_id = threadIdx.x, rank = block_rank_in_cluster();
    const ThreadCoords thread = {
        thread_id, thread_id / 32, thread_id % 32, rank * UNITS, (int)(blockIdx.x / BLOCKS) * TILES * 8, params.batch};
    if (thread_id == 0) {
        for (int i = 0; i < 16; i++) mbarrier_init(smem_addr(&shared.barriers[0][i]));
        fence_mbarrier_init();
    }
#pragma unroll 1
    for (int i = thread.number; i < (int)(sizeof(shared.gates) / 4); i += THREADS) ((unsigned*)shared.gates)[i] = 0;
    shared.carry.load(params, thread);
    Weights weights(shared.weight_storage, params.weight_stream, rank,
                    [&](int pass, int i) { return load_a_fragment(params.weight_hh, thread, pass, i); });
    const int steps = params.steps, tiles = min(TILES, (thread.batch - thread.first_sequence + 7) / 8);
    __syncthreads();
    jitter(-1, 4);
    cluster_sync();
    GateInputs<ThreadCoords> inputs = {};
    BackwardPointers<ThreadCoords> pointers(params, thread, tiles);
    inputs.load(pointers, thread, 0, steps > 1);
    bool timed_out = false;
    int gate_buffer = 0;
    for (int i = 0; i < steps && !timed_out; i++) {
        const int now = i % 2, last = 1 - now;
#pragma unroll 1
        for (int tile = 0; tile < tiles && !timed_out; tile++) {
            LocalGradients local_gradients[STATES_PER_THREAD];
            float d_h[STATES_PER_THREAD];
            const int end = shared.carry.ends[tile][thread.sequence_in_tile(0)];
#pragma unroll
            for (int s = 0; s < STATES_PER_THREAD; s++) {
                local_gradients[s] = inputs.local_gradients(params, thread, tile, s, params.time(i + 1), end);
                const bool is_active = thread.is_inside(tile, s) && params.time(i) < end;
                d_h[s] = shared.carry.d_h[tile][s][thread_id] + (is_active ? widen_bits(inputs.d_output[s]) : 0);
            }
            if (thread_id == 0) mbarrier_arrive_expect_tx(smem_addr(&shared.barriers[now][tile]), BLOCKS * SUM_TILE_BYTES);
            const bool is_last = tile + 1 == tiles;
            pointers.advance_inputs(is_last);
            if (i + is_last < steps) inputs.load(pointers, thread, is_last ? 0 : tile + 1, i + is_last + 1 < steps);
            jitter(i, 1);
            if (i > 0) timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[last][tile]), (i - 1) / 2 % 2);
            jitter(i, 2);
#pragma unroll
            for (int s = 0; s < STATES_PER_THREAD; s++) {
                if (thread.local_unit(s) >= UNITS) continue;
                if (i > 0) d_h[s] = add_partial_sums(d_h[s], shared, thread, tile, s, last);
                pointwise_backward(shared.carry, params, local_gradients[s], thread, tile, s, i, d_h[s],
                                   [&](int gate, scalar_t gradient) {
                                       const int k = gate * UNITS + thread.local_unit(s);
                                       shared.gates[gate_buffer][k / K_TILE][thread.sequence_in_tile(s)][k % K_TILE] = gradient;
                                   },
                                   PointedPlaces{pointers.d_gates + s * pointers.UNITS_APART,
                                                 pointers.d_recurrent + s * pointers.UNITS_APART});
            }
            pointers.advance_gradients(is_last);
            jitter(i, 3);
            timed_out = __syncthreads_or(timed_out);
            if (!timed_out) mma_and_send(shared, weights, thread, tile, gate_buffer, now);
            gate_buffer = 1 - gate_buffer;
        }
    }
    for (int tile = 0; tile < tiles && !timed_out; tile++)
        timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[(steps - 1) % 2][tile]), (steps - 1) / 2 % 2);
    timed_out = __syncthreads_or(timed_out);
    if (timed_out) *(volatile int*)params.status = 1;
    for (int tile = 0; tile < tiles; tile++) {
        for (int s = 0; s < STATES_PER_THREAD && !timed_out; s++)
            store_initial_state_gradients(
                shared.carry, params, thread, tile, s,
                add_partial_sums(shared.carry.d_h[tile][s][thread_id], shared, thread, tile, s, (steps - 1) % 2));
        if (timed_out) write_nan(params, thread, tile);
    }
    weights.drain();
    cluster_sync();
}
