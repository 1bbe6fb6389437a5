// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in one
//   launch: W_hh stays in registers and shared memory (Diamos et al., Persistent RNNs, ICML 2016), or as much of it as fits.
//   With INPUTS > 0 the input product is made first, in the same launch (input_gemm.cuh).
// Layout: of Params (gate_step.cuh, input_product.cuh, and below), by field:
//   gates [T, B, G*H] scalar_t, read: W_ih x without biases, element (t, b, f) at t * gates_step + b * gates_sequence + f. With
//   INPUTS > 0 written first, by the block that reads it, from x [T, B, INPUTS] and weight_ih [G*H, INPUTS] scalar_t, read,
//   element (t, b, i) of x at t * x_step + b * x_sequence + i. LOAD_BYTES bytes divide their addresses, rows and strides.
//   weight_hh [G*H, H] scalar_t, read. bias_ih, bias_hh [G*H] scalar_t, read, null for none
//   h0, c0 [B, H] scalar_t, read, null for zeros. h_n, c_n [B, H] scalar_t, written, c_n by LSTM only
//   output [T, B, H] scalar_t, written: at t * output_step + b * output_sequence + h, 0 where a sequence is over
//   lengths [B] int64, read, null for none: a sequence that is over keeps its state
//   saved_gates [rows, 4*H] scalar_t, saved_cells [rows, H] float, written with SAVE_GATES for the backward pass: of (t, b) in
//   row t * row_step + b * row_sequence LSTM i f g o, GRU r z n and W_hn h + b_hn; c of LSTM
//   weight_stream, written and read: 8,192 bytes for each block and fragment of W_hh that is streamed (resident_weights.cuh)
//   status [1] int32 in memory of the host, written when a wait timed out: 1; all results of that block are NaN then
//   No two may alias. Alignment: of the element; weight_hh: LOAD_BYTES bytes; weight_stream: 16 bytes.
// Launch: a cluster of BLOCKS blocks for each TILES tiles of 8 sequences; block r owns UNITS hidden units from r * UNITS, whose
//   rows of W_hh, a unit's gates beside each other, are its rows of the product. Its 8 MMA warps are K_PARTITIONS partitions of
//   K by groups of rows; the pointwise warps come after them. Shared bytes: Form.shared_bytes.
// Cost: reads G H^2 + T B G H values, writes T B H; 2 T B G H^2 operations. Between blocks B H values a step and block. With
//   INPUTS > 0 further reads G H INPUTS values for each cluster and 16 rows of x, and
//   x once a block and pass of row tiles, writes T B G H; 2 T B G H INPUTS operations.
// Limits: compute capability 9.0; UNITS a multiple of 16 bytes of scalar_t; T, B, G * H below 2^30, with INPUTS > 0 T times the
//   sequences of a cluster too; offsets 64-bit.
// Order: 1. h_(t+1) of a tile is read whole: it is stored to every block's buffer (t+1)%2 by st.async, and waited for by its
//      bytes (cluster.cuh).
//   2. A buffer is overwritten only by a producer that has all of h_(t+1). Every producer of that passed its block's last
//      barrier of that tile and step, where all its warps had read h_t.
//   3. Such a producer had all of h_t itself, so what was sent of h_t from that buffer has arrived everywhere.
//   4. Sums are full and empty between two barriers of the block.
//   5. A wait that takes WATCHDOG_NS times out: all threads of its block stop publishing at the next barrier, and in turn all
//      blocks.
//   6. Sums are taken in one order: bit-equal repeats.
//   7. Of an input product a block's threads read what the same block wrote, with a barrier in between.
#include "cluster_pointwise_warps.cuh"
#include "ecornn/ptx/register_reconfig.cuh"
#include "input_gemm.cuh"

struct SharedStorage {
    unsigned long long barriers[2][8];  // a tile's, padded to 128 bytes
    States states[2][TILES];
    PointwiseStorage pointwise;
    int timed_out;  // a wait of some thread has timed out: no more is published
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "Form.shared_bytes");

// Computes the sums of every tile and step, by the first 8 warps.
__device__ inline void run_mma_warps(SharedStorage& shared, ResidentWeights& weights, const ThreadCoords& thread, int steps,
                                     int tiles) {
    const auto b_ptr_at = [&](int t, int tile) {
        return thread_b_ptr(shared.states[t % 2][tile], thread.warp % K_PARTITIONS, thread.lane);
    };
    const uint4* b_ptr = b_ptr_at(0, 0);  // before the wait, as the product begins right after it
    bool timed_out = false;
    int buffer = 0, iteration = 0;
    for (int t = 0; t < steps; t++)
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            if (iteration >= 2) named_barrier_sync(NamedBarrier::SumsEmpty + buffer, BLOCK_THREADS);
            if (t > 0 && !timed_out)
                timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[t % 2][tile]), (t - 1) / 2 % 2);
            if (timed_out) *(volatile int*)&shared.timed_out = 1;
            jitter(t, 0);
            mma_recurrent(shared.pointwise, buffer, weights, thread, b_ptr);
            jitter(t, 1);
            named_barrier_arrive(NamedBarrier::SumsFull + buffer, BLOCK_THREADS);
            buffer = 1 - buffer, iteration = iteration < 2 ? iteration + 1 : 2;
            b_ptr = tile + 1 < tiles ? b_ptr_at(t, tile + 1) : b_ptr_at(t + 1, 0);
        }
    weights.drain();
}

struct Params : DenseParams {
    uint4* weight_stream;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    persistent_forward(const __grid_constant__ Params params) {
    input_gemm(params);
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const int thread_id = threadIdx.x, rank = block_rank_in_cluster(), number = thread_id % THREADS;
    const ThreadCoords thread = {number, number / 32, number % 32, rank * UNITS, (int)(blockIdx.x / BLOCKS) * TILES * 8,
                                 params.batch};
    const int tiles = min(TILES, (thread.batch - thread.first_sequence + 7) / 8);
    init_mbarriers(shared, 6);
    if (thread_id < THREADS) {
        warpgroup_reg_alloc<OTHER_REGISTERS>();
        ResidentWeights weights(shared.pointwise.weight_storage, params.weight_stream, rank,
                                [&](int s, int i) { return load_a_fragment(params.weight_hh, thread, s, i); });
        cluster_sync();
        run_mma_warps(shared, weights, thread, params.steps, tiles);
    } else {
        warpgroup_reg_dealloc<GATE_REGISTERS>();
        load_carry_and_states(shared, params, thread, tiles);
        cluster_sync();
        run_pointwise_warps(shared, params, thread, tiles, GateInputs(), [](int) {});
    }
    cluster_sync();
}
