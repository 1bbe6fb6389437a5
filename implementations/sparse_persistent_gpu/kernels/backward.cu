// Maths: the backward pass of forward.cu, CELL, all T steps of one layer and direction in one launch: each block
//   multiplies the gradients of all gates by the rows of W_hh^T of its own units, whose non-zeros are resident in it.
// Layout: as persistent_gpu's grid_backward.cu, but for weight_hh, in whose place Params has col_indices, values, slots and
//   row_offsets as in forward.cu, of W_hh^T, whose columns are a unit's gates side by side; and for
//   mailboxes, as in forward.cu: the gradients of a block's gates, with epoch i + 1 in the i-th step backward.
//   No two may alias. Alignment: of the element; mailboxes: 16 bytes; values: 4 bytes.
// Launch: as forward.cu.
// Cost: reads the non-zeros once, T B values a unit as persistent_gpu's grid_backward.cu; 2 T B operations a non-zero. Each
//   block receives 4/3 B G H values of others a step.
// Limits: as forward.cu; positions are G * H.
// Order: 1. As forward.cu, gradients of step i + 2 overwriting those of i.
#include "ecornn/common/jitter.cuh"
#include "ecornn/rnn/pointwise_backward.cuh"
#include "cluster_reduce.cuh"
#include "spmm_rows.cuh"

struct ThreadCoords {
    static constexpr int TILE_BATCH = SEQUENCES, NUM_THREADS = POINTWISE_THREADS;
    static constexpr int STATES_PER_THREAD = LaneConfig::STATES_PER_THREAD;
    int number, first_unit, first_sequence, batch;
    __device__ int local_unit(int state) const { return LaneConfig::unit_of_state(number, state); }
    __device__ int sequence_in_tile(int state) const { return LaneConfig::sequence_of_state(number, state); }
    __device__ int unit(int state) const { return first_unit + local_unit(state); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * TILE_BATCH + sequence_in_tile(state); }
    __device__ bool is_inside(int tile, int state) const {
        return sequence_in_tile(state) < TILE_BATCH && unit(state) < HIDDEN && sequence(tile, state) < batch;
    }
};

struct Params : BackwardParams {
    const unsigned* col_indices;
    const scalar_t* values;
    const int *slots, *row_offsets;
    uint4* mailboxes;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

struct SharedStorage {
    States<GATES> states;  // gates' gradients of all units
    OutgoingStates<GATES> outgoing;
    PartialSums<1> partial_sums;
    GradientCarry<ThreadCoords> carry;
    WeightStorage weight_storage;
    int timed_out;  // the wait of some thread for another block has timed out
    PartialSumExchange exchange;
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "SparseConfig.shared_bytes");

// The i-th step backward of a thread's own units of a tile; after the last one d_h of the initial state. sums: of step i - 1.
__device__ inline void pointwise_backward_units(SharedStorage& shared, const BackwardParams& params,
                                                const GateInputs<ThreadCoords>& inputs, const RowSums<1>& sums,
                                                const ThreadCoords& thread, int tile, int i) {
#pragma unroll
    for (int s = 0; s < STATES_PER_THREAD; s++) {
        if (thread.sequence_in_tile(s) >= SEQUENCES) continue;
        const float d_h = shared.carry.d_h[tile][s][thread.number] + sums.data[s][0];
        if (i == params.steps) {
            store_initial_state_gradients(shared.carry, params, thread, tile, s, d_h);
            continue;
        }
        const int end = shared.carry.ends[tile][thread.sequence_in_tile(s)];
        const bool is_alive = thread.is_inside(tile, s) && params.time(i) < end;
        const LocalGradients slopes = inputs.local_gradients(params, thread, tile, s, params.time(i + 1), end);
        const float all_d_h = d_h + (is_alive ? widen_bits(inputs.d_output[s]) : 0);
        pointwise_backward(shared.carry, params, slopes, thread, tile, s, i, all_d_h, [&](int gate, scalar_t gradient) {
            shared.outgoing.at(thread.unit(s), thread.sequence_in_tile(s), gate) = gradient;
        });
    }
}

// Computes and publishes a tile's gradients, by the pointwise threads, and prefetches the inputs of the next step.
__device__ inline void pointwise_step(SharedStorage& shared, const BackwardParams& params, const Mailbox<GATES>& mailbox,
                                      const GateInputs<ThreadCoords>& inputs, const RowSums<1>& sums,
                                      const ThreadCoords& thread, int tile, int i) {
    pointwise_backward_units(shared, params, inputs, sums, thread, tile, i);
    named_barrier_sync(NamedBarrier::StatesReady, POINTWISE_THREADS);
    jitter(i, 4);
    const bool cluster_timed_out = CLUSTER > 1 && *(volatile int*)&shared.timed_out;
    if (i < params.steps && !cluster_timed_out)
        publish_states(shared.outgoing, mailbox, thread.first_sequence / SEQUENCES + tile, i + 1, thread.number);
    if (TILES == 1) named_barrier_arrive(NamedBarrier::Published, BLOCK_THREADS);
    if (i + 1 < params.steps) inputs.prefetch(params, thread, tile, i + 1);
}

// Runs all steps of all tiles. False after a timeout. It is compiled once for pointwise and once for receiver threads, so that
// each role has registers only for what it needs.
template <bool IS_POINTWISE_WARP>
__device__ inline bool run_steps(SharedStorage& shared, const Params& params, const Mailbox<GATES>& mailbox,
                                 const ThreadCoords& thread, const Destination& destination) {
    NonZeros non_zeros(shared.weight_storage, params.col_indices, params.values);
    const int tiles = num_tiles(thread.first_sequence, thread.batch);
    for (int i = 0; i <= params.steps; i++) {
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            GateInputs<ThreadCoords> inputs = {};
            if (IS_POINTWISE_WARP && i < params.steps) inputs.load(params, thread, tile, i);
            jitter(i, 0);
            bool timed_out = false;
            if (i > 0) {
                if (!IS_POINTWISE_WARP &&
                    !receive_states(shared.states, mailbox, thread.first_sequence / SEQUENCES + tile, i, i,
                                    thread.number - POINTWISE_THREADS))
                    *(volatile int*)&shared.timed_out = 1;
                __syncthreads();
                timed_out = *(volatile int*)&shared.timed_out;
                jitter(i, 1);
                float partial_sum[SEQUENCES] = {};
                non_zeros.multiply(partial_sum, shared.weight_storage, shared.states);
                if (CLUSTER > 1 && timed_out) return false;
                shared.exchange.send_partial_sum(shared.partial_sums, destination, partial_sum, i - 1);
            }
            const RowRanges ranges(shared.partial_sums, thread.number);
            if (CLUSTER == 1) __syncthreads();
            if (timed_out) return false;
            jitter(i, 2);
            if (IS_POINTWISE_WARP && i > 0 && !shared.exchange.wait_partial_sums(i - 1)) *(volatile int*)&shared.timed_out = 1;
            if (IS_POINTWISE_WARP)
                pointwise_step(shared, params, mailbox, inputs, RowSums(shared.partial_sums, ranges, thread.number, i - 1),
                               thread, tile, i);
            else if (TILES == 1) named_barrier_sync(NamedBarrier::Published, BLOCK_THREADS);  // an earlier poll is in vain
        }
    }
    return CLUSTER == 1 || !*(volatile int*)&shared.timed_out;
}

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(BLOCK_THREADS, 1)
    sparse_persistent_backward(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    unsigned opaque_number = threadIdx.x, opaque_block = blockIdx.x;
    opaque(opaque_number), opaque(opaque_block);  // else the compiler would read them again at each use
    const int number = opaque_number, block = opaque_block;
    const ThreadCoords thread = {number, block % BLOCKS * UNITS, block / BLOCKS * TILES * SEQUENCES, params.batch};
    const Mailbox<GATES> mailbox(params.mailboxes, (params.batch + SEQUENCES - 1) / SEQUENCES, block);
    zero_smem(&shared, sizeof(shared.states) + sizeof(shared.outgoing) + sizeof(shared.partial_sums.slots));
    shared.timed_out = 0;
    if (CLUSTER > 1) shared.exchange.init(params.row_offsets);
    else shared.partial_sums.load_row_offsets(params.row_offsets);
    __syncthreads();
    if (number < POINTWISE_THREADS) shared.carry.load(params, thread);
    sync_block_or_cluster();
    const int slot = params.slots[block % BLOCKS * BLOCK_THREADS + number];
    const Destination destination = shared.exchange.destination_of(shared.partial_sums, slot);
    const bool is_complete = number < POINTWISE_THREADS
                                 ? run_steps<true>(shared, params, mailbox, thread, destination)
                                 : run_steps<false>(shared, params, mailbox, thread, destination);
    if (CLUSTER > 1) sync_block_or_cluster();  // others may still send partial sums
    if (is_complete || number >= POINTWISE_THREADS) return;
    *(volatile int*)params.status = 1;
    for (int tile = 0; tile < num_tiles(thread.first_sequence, params.batch); tile++) write_nan(params, thread, tile);
}
