// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in one
//   launch, with a pruned W_hh whose non-zeros are resident in registers and shared memory of as many multiprocessors as there
//   are; products and sums in float32.
// Layout: as persistent_gpu's grid_forward.cu, but for x, weight_ih and weight_hh, in whose place Params has
//   col_indices, values [BLOCKS, pairs, BLOCK_THREADS] of a block's non-zeros, as spmm_rows.cuh reads them;
//   slots [BLOCKS, BLOCK_THREADS] of each thread's partial sums, and row_offsets [BLOCKS, ROWS + 1], where each row's begin
//   unless all have PARTS_A_ROW of them, or of clusters [BLOCKS], how many a block receives (packing.py); and for
//   mailboxes [tiles of all groups, 2, BLOCKS, PACKETS] of 16 bytes, then [tiles of all groups] of 16 bytes: all 0 before the
//   launch. No two may alias. Alignment: of the element; mailboxes: 16 bytes; values: 4 bytes.
// Launch: cooperative, all blocks at once: a group of BLOCKS blocks for each TILES tiles of SEQUENCES sequences, independent of
//   the other groups; block r of a group owns UNITS hidden units from r * UNITS. Of BLOCK_THREADS threads each multiplies
//   non-zeros of one row; POINTWISE_THREADS pointwise threads have the states, the others receive what all blocks publish.
//   CLUSTER adjacent blocks divide the columns of their rows (cluster_reduce.cuh); more than one only where TILES is 1.
//   Shared bytes: SparseConfig.shared_bytes (config.py).
// Cost: reads the non-zeros once, T B G H values, writes T B H; 2 T B operations a non-zero. Each block receives 4/3 B H values
//   of others a step, and reads a non-zero's states of SEQUENCES sequences from shared memory.
// Limits: compute capability 8.0; at most 65,536 positions of states; T, B, G * H below 2^30; offsets 64-bit.
// Order: 1. A packet is stored and loaded as one (ld_st_128.cuh), so one whose epoch is valid is valid as a whole.
//   2. h_(t+1) of a tile overwrites h_(t-1): its producer has read all of h_t, each packet of which was published by a block
//      all of whose threads had read all of h_(t-1), the block's barriers being between.
//   3. So no consumer still needs what is overwritten, and one that polls sees the epoch that it waits for, or that of two
//      steps before, or 0. Without TIMESTAMPS the same holds of the counter in place of epochs.
//   4. In a block two barriers a tile and step are between receiving and the product, and between its partial sums and their
//      reduction.
//   5. Then the receiver threads go on to the next packets, which overwrite states that the product has read, and store them
//      before the next barrier, by which the pointwise threads have read all partial sums.
//   6. A wait that takes WATCHDOG_NS times out for all threads of its block at the second barrier, and so, in turn, for all
//      blocks of the group.
//   7. Sums are reduced in one order: bit-equal repeats.
//   8. In clusters the wait for partial sums, and then that for what is published, replace the second barrier
//      (cluster_reduce.cuh).
#include "ecornn/common/jitter.cuh"
#include "ecornn/rnn/pointwise_forward.cuh"
#include "cluster_reduce.cuh"
#include "spmm_rows.cuh"

typedef ThreadCoords<LaneConfig> Thread;

struct Params : ForwardParams {
    const unsigned* col_indices;
    const scalar_t* values;
    const int *slots, *row_offsets;
    uint4* mailboxes;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

struct SharedStorage {
    States<1> states;
    OutgoingStates<1> outgoing[TILES];
    PartialSums<GATES> partial_sums;
    PointwiseStorage<LaneConfig> pointwise;
    WeightStorage weight_storage;
    int timed_out;  // the wait of some thread for another block has timed out
    PartialSumExchange exchange;
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "SparseConfig.shared_bytes");

// Computes, publishes and writes the states of every tile and step. False after a timeout. It is compiled once for pointwise
// and once for receiver threads, so that each role has registers only for what it needs.
template <bool IS_POINTWISE_WARP>
__device__ inline bool run_steps(SharedStorage& shared, const Params& params, const Mailbox<1>& mailbox,
                                 const Thread& thread, const Destination& destination) {
    NonZeros non_zeros(shared.weight_storage, params.col_indices, params.values);
    const bool has_h0 = params.h0;
    const int receiver_thread = thread.number - POINTWISE_THREADS;
    const int tiles = num_tiles(thread.first_sequence, thread.batch), first_tile = thread.first_sequence / SEQUENCES;
    StatePointers walk(params, thread, tiles);
    GateInputs<LaneConfig> inputs = {};
    if (IS_POINTWISE_WARP) inputs.load(params, walk, 0, 0);
    for (int t = 0; t < params.steps; t++) {
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const bool is_last = tile + 1 == tiles, is_expected = t > 0 || has_h0;
            jitter(t, 0);
            if (!IS_POINTWISE_WARP && is_expected
                && !receive_states(shared.states, mailbox, first_tile + tile, t + 1, t + has_h0, receiver_thread))
                *(volatile int*)&shared.timed_out = 1;
            __syncthreads();
            const bool timed_out = *(volatile int*)&shared.timed_out;
            jitter(t, 1);
            float partial_sum[SEQUENCES] = {};
            non_zeros.multiply(partial_sum, shared.weight_storage, shared.states);
            if (CLUSTER > 1 && timed_out) return false;
            shared.exchange.send_partial_sum(shared.partial_sums, destination, partial_sum, t);
            const RowRanges ranges(shared.partial_sums, thread.number);
            if (CLUSTER == 1) __syncthreads();
            if (timed_out) return false;
            jitter(t, 2);
            if (!IS_POINTWISE_WARP) {
                if (TILES == 1) named_barrier_sync(NamedBarrier::Published, BLOCK_THREADS);
                continue;
            }
            if (!shared.exchange.wait_partial_sums(t)) *(volatile int*)&shared.timed_out = 1;
            const RowSums sums(shared.partial_sums, ranges, thread.number, t);
            const auto sums_of_state = [&](int s) {
                return GateVector{{sums.data[s][0], sums.data[s][1], sums.data[s][2], sums.data[s][3]}};
            };
            const GateOperands ready(shared.pointwise, inputs, thread, tile, params.step(t));
            const StepResult result(shared.pointwise, sums_of_state, ready, thread, tile, shared.outgoing[tile],
                                    shared.outgoing[tile]);
            jitter(t, 3);
            named_barrier_sync(NamedBarrier::StatesReady, POINTWISE_THREADS);
            jitter(t, 4);
            const bool cluster_timed_out = CLUSTER > 1 && *(volatile int*)&shared.timed_out;
            if (t + 1 < params.steps && !cluster_timed_out)
                publish_states(shared.outgoing[tile], mailbox, first_tile + tile, t + 2, thread.number);
            if (TILES == 1) named_barrier_arrive(NamedBarrier::Published, BLOCK_THREADS);
            result.write(walk, ready, tile);
            if (t + 1 == params.steps) result.write_final(params, shared.pointwise, ready, thread, tile);
            walk.advance(is_last);
            load_next_inputs(inputs, walk, params, tiles, tile, t);
        }
    }
    return CLUSTER == 1 || !*(volatile int*)&shared.timed_out;
}

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(BLOCK_THREADS, 1)
    sparse_persistent_forward(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    unsigned opaque_number = threadIdx.x, opaque_block = blockIdx.x;
    opaque(opaque_number), opaque(opaque_block);  // else the compiler would read them again at each use
    const int number = opaque_number, block = opaque_block;
    const Thread thread = {
        number, number / 32, number % 32, block % BLOCKS * UNITS, block / BLOCKS * TILES * SEQUENCES, params.batch};
    const Mailbox<1> mailbox(params.mailboxes, (params.batch + SEQUENCES - 1) / SEQUENCES, block);
    const bool is_pointwise_warp = number < POINTWISE_THREADS;
    zero_smem(&shared, sizeof(shared.states) + sizeof(shared.outgoing) + sizeof(shared.partial_sums.slots));
    shared.timed_out = 0;
    if (CLUSTER > 1) shared.exchange.init(params.row_offsets);
    else shared.partial_sums.load_row_offsets(params.row_offsets);
    __syncthreads();
    if (is_pointwise_warp) {
        load_biases_and_carry(shared.pointwise, params, thread);
        for (int tile = 0; params.h0 && tile < TILES; tile++)
            load_own_initial_state(shared.outgoing[tile], params, thread, tile);
    }
    sync_block_or_cluster();
    for (int tile = 0; params.h0 && is_pointwise_warp && tile < num_tiles(thread.first_sequence, params.batch); tile++)
        publish_states(shared.outgoing[tile], mailbox, thread.first_sequence / SEQUENCES + tile, 1, number);
    jitter(-1, 5);
    const int slot = params.slots[block % BLOCKS * BLOCK_THREADS + number];
    const Destination destination = shared.exchange.destination_of(shared.partial_sums, slot);
    const bool is_complete = is_pointwise_warp
                                 ? run_steps<true>(shared, params, mailbox, thread, destination)
                                 : run_steps<false>(shared, params, mailbox, thread, destination);
    if (CLUSTER > 1) sync_block_or_cluster();  // others may still send partial sums
    if (is_complete || !is_pointwise_warp) return;
    *(volatile int*)params.status = 1;
    write_nan(params, thread, num_tiles(thread.first_sequence, params.batch));
}
