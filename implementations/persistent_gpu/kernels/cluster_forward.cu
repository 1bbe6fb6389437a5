// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in one
//   launch: W_hh stays in registers and shared memory (Diamos et al., Persistent RNNs, ICML 2016), or as much of it as fits.
// Layout: of Params (ForwardParams, DenseParams and below), by field:
//   gates [T, B, G*H] scalar_t, read: W_ih x without biases, element (t, b, f) at t * gates_step + b * gates_sequence + f. With
//   INPUTS > 0 written first (input_gemm.cuh), from x [T, B, INPUTS] and weight_ih [G*H, INPUTS] scalar_t, read, element
//   (t, b, i) of x at t * x_step + b * x_sequence + i. LOAD_BYTES bytes divide their addresses, rows and strides.
//   weight_hh [G*H, H] scalar_t, read. bias_ih, bias_hh [G*H] scalar_t, read, null for none
//   h0, c0 [B, H] scalar_t, read, null for zeros. h_n, c_n [B, H] scalar_t, written, c_n by LSTM only
//   output [T, B, H] scalar_t, written: at t * output_step + b * output_sequence + h, 0 where a sequence is over
//   lengths [B] int64, read, null for none: the state of a sequence that is over does not change
//   saved_gates [rows, 4*H] scalar_t, saved_cells [rows, H] float, written with SAVE_GATES for the backward pass: of (t, b) in
//   row t * row_step + b * row_sequence LSTM i f g o, GRU r z n and W_hn h + b_hn; c of LSTM
//   weight_stream, written and read: 8,192 bytes for each rank and streamed fragment of W_hh, of which clusters write equals
//   status [1] int32 in memory of the host, written after a timeout: 1. output, h_n and c_n of that block's units are NaN then
//   No two may alias. Alignment: of the element; weight_hh: LOAD_BYTES bytes; weight_stream: 16 bytes.
// Launch: a cluster of BLOCKS blocks for each TILES tiles of 8 sequences; block r owns UNITS hidden units from r * UNITS, whose
//   rows of W_hh, a unit's gates adjacent, are its rows of the product. The first 8 warps are the MMA warps: K_PARTITIONS
//   partitions of K by groups of rows, MMA_REGISTERS registers a thread. The next 4 or 8, POINTWISE_THREADS / 32, are the
//   pointwise warps, POINTWISE_REGISTERS registers a thread. Shared bytes: the host's shared_bytes (config.py).
// Cost: reads G H^2 + T B G H values, writes T B H; 2 T B G H^2 operations. Between blocks B H values a step and block. With
//   INPUTS > 0 it further reads G H INPUTS values for each cluster and 16 rows of x, and x once a block and pass of row tiles,
//   and writes T B G H; 2 T B G H INPUTS operations.
// Limits: compute capability 9.0; UNITS a multiple of 16 bytes of scalar_t; T, B, G * H below 2^30, with INPUTS > 0 T times the
//   sequences of a cluster too; offsets 64-bit.
// Order: 1. Parts of h_(t+1) go into states[(t+1) % 2] of all other blocks by st.async. The mbarrier there counts their bytes.
//   2. A block's own part is stored directly. Pointwise thread 0's arrive at the mbarrier, after StatesReady, publishes it.
//   3. Bytes that arrive before that thread does are counted too: the phase does not complete without its arrive.
//   4. States have no empty barrier. To have all of h_(t+1) is the proof that h_t may be overwritten, in any block:
//   5. Each block sent its part of h_(t+1) after StatesReady of step t, and all its warps had read h_t before that.
//   6. Each block had received all of h_t before it sent that part, so no bytes of h_t are still in flight.
//   7. SumsFull and SumsEmpty order the writes and reads of either buffer of sums.
//   8. An MMA thread whose wait takes WATCHDOG_NS sets timed_out and waits for no mbarrier more. Its block stops publishing at
//      the next SumsFull at the latest. So its peers miss bytes, and time out in turn.
//   9. All loops run to their end, so that every wait at a named barrier is met by its arrivals. Then status becomes 1, and
//      write_nan overwrites the block's results. A later launch that sees status raises (TimeoutStatus.check in kernel.py).
//   10. An input product is read by the block that wrote it, after a barrier. Sums are added in one order: bit-equal repeats.
#include "cluster_pointwise_warps.cuh"
#include "ecornn/ptx/register_reconfig.cuh"
#include "input_gemm.cuh"

typedef AdjacentUnitsConfig<POINTWISE_THREADS> Config;
typedef ThreadCoords<Config> Thread;
typedef ResidentWeights<M_TILES_PER_WARP * RECURRENT_K_TILES, REG_FRAGMENTS> Weights;

struct SharedStorage {
    // Full barrier of states[buffer][tile]: one arrival, and the peers' bytes. Padded to 128 bytes.
    unsigned long long barriers[2][8];
    States states[2][TILES];
    Sums sums;
    PointwiseStorage<Config> pointwise;
    WeightStorage weight_storage;
    int timed_out;  // the wait of some MMA thread has timed out: nothing more is published
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "Resources.shared_bytes");

// Computes the sums of every tile and step, by the MMA warps.
__device__ inline void run_mma_warps(SharedStorage& shared, Weights& weights, const Thread& thread, int steps, int tiles) {
    const auto b_ptr_at = [&](int t, int tile) {
        return thread_b_ptr(shared.states[t % 2][tile], thread.warp % K_PARTITIONS, thread.lane);
    };
    const uint4* b_ptr = b_ptr_at(0, 0);  // computed before the wait: the product begins right after it
    bool timed_out = false;
    int buffer = 0, iteration = 0;
    for (int t = 0; t < steps; t++)
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            // Both buffers of sums start empty: the first two passes wait for no SumsEmpty.
            if (iteration >= 2) named_barrier_sync(NamedBarrier::SumsEmpty + buffer, BLOCK_THREADS);
            // barriers[t % 2] has a phase every second step. That of h_t is number (t - 1) / 2, as h_0 was loaded without one;
            // % 2 is its parity.
            if (t > 0 && !timed_out)
                timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[t % 2][tile]), (t - 1) / 2 % 2);
            if (timed_out) *(volatile int*)&shared.timed_out = 1;
            jitter(t, 0);
            mma_recurrent(shared.sums, buffer, weights, thread, b_ptr);
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
    input_gemm<Config, BLOCK_THREADS>(params);
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const int thread_id = threadIdx.x, rank = block_rank_in_cluster(), number = thread_id % THREADS;
    const Thread thread = {
        number, number / 32, number % 32, rank * UNITS, (int)(blockIdx.x / BLOCKS) * TILES * 8, params.batch};
    const int tiles = min(TILES, (thread.batch - thread.first_sequence + 7) / 8);
    init_mbarriers(shared, 6);
    if (thread_id < THREADS) {
        warpgroup_reg_alloc<MMA_REGISTERS>();
        Weights weights(shared.weight_storage, params.weight_stream, rank,
                        [&](int s, int i) { return load_a_fragment(params.weight_hh, thread, s, i); });
        cluster_sync();
        run_mma_warps(shared, weights, thread, params.steps, tiles);
    } else {
        warpgroup_reg_dealloc<POINTWISE_REGISTERS>();
        load_carry_and_states(shared, params, thread, tiles);
        cluster_sync();
        run_pointwise_warps(shared, params, thread, tiles, GateInputs<Config>(), [](int) {});
    }
    cluster_sync();
}
