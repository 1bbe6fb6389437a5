// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL: LAYERS layers in one direction, all T steps and the input products
//   too, in one launch, as a wavefront: each layer multiplies [W_ih | W_hh] by [its input at t; its own h_(t-1)], a few steps
//   behind the layer below. Source: Appleyard et al., Optimizing Performance of Recurrent Neural Networks on GPUs, 2016.
// Layout: of Params (below), by field:
//   x [T, B, INPUTS] scalar_t, read, the input of the first layer: element (t, b, i) at t * x_step + b * x_sequence + i
//   layers, of each: weight_ih [G*H, INPUTS, above the first H], weight_hh [G*H, H] scalar_t, read. bias_ih, bias_hh, output,
//   saved_gates, saved_cells: as cluster_forward.cu, as are lengths and status; each output is read by the layer above.
//   h0, c0, h_n, c_n [LAYERS, B, H] scalar_t: as cluster_forward.cu.
//   step_flags [LAYERS, tile sets, BLOCKS] int32, read and written: all 0 before the launch; steps that a block has written.
//   No two may alias. Alignment: of the element; x, weights, outputs, and what is between rows of x: LOAD_BYTES bytes.
// Launch: a cluster of BLOCKS blocks for each layer and tile set, TILES tiles of 8 sequences, the first layer's clusters first.
//   A block has the warps of cluster_forward.cu, LOAD_WARPS load warps, each with its own buffer of inputs, and a signal warp,
//   which signals the layer above. These have LOAD_REGISTERS registers a thread. Shared bytes: the host's shared_bytes
//   (config.py).
// Cost: of each layer reads G H (I + H) + T B I values, writes T B H; 2 T B G H (I + H) operations.
// Limits: compute capability 9.0; UNITS a multiple of 16 bytes of scalar_t, nothing of the weights is streamed; T, B, G * H
//   below 2^30; offsets 64-bit. To be fast, not to be right, all clusters run at once: see Order.
// Order: 1. In a cluster as cluster_forward.cu.
//   2. Between layers: the pointwise warps arrive at a barrier with the signal warp when all have written a step of the output.
//      That warp then sets its flag to the step's number, releasing (flags.cuh) what all of them wrote before the barrier.
//   3. A lane of a load warp acquires the flag of one block below, and its warp synchronises before any lane reads. So each
//      value read was written before.
//   4. Every flag is set once for each step, in order, by one thread.
//   5. No layer waits for one above: a layer can go on when all below it can, and blocks start in their order.
//   6. A buffer of inputs is read between the barriers InputsFull, where its load warp has written it, and InputsEmpty, before
//      which its load warp does not write it again.
//   7. The sums of GRU's W_in x are among the others.
//   8. A wait that takes WATCHDOG_NS times out, and its block publishes nothing more. So, in turn, do its cluster and the
//      layers above. All loops run to their end, as in cluster_forward.cu.
#include "ecornn/ptx/flags.cuh"
#include "ecornn/ptx/register_reconfig.cuh"
#include "cluster_pointwise_warps.cuh"

constexpr int LOAD_WARPS = 3;
constexpr int INPUT_K_TILES = ceil_div(INPUTS > HIDDEN ? INPUTS : HIDDEN, K_TILE * K_PARTITIONS);  // in a K partition
constexpr int VECTORS_IN_FLIGHT = LOAD_BYTES < 8 ? LOAD_BYTES / 2 : 8;  // of a lane of a load warp

struct Config : AdjacentUnitsConfig<POINTWISE_THREADS> {
    static constexpr bool HAS_FUSED_INPUTS = true;
};
typedef ThreadCoords<Config> Thread;
typedef ResidentWeights<M_TILES_PER_WARP * (RECURRENT_K_TILES + INPUT_K_TILES), REG_FRAGMENTS> Weights;
// Further named barriers, after those of cluster_pointwise_warps.cuh.
enum WaveBarrier {
    InputsFull = 6,                           // + buffer. Its load warp, the producer, arrives; the MMA warps, consumers, wait
    InputsEmpty = InputsFull + LOAD_WARPS,    // + buffer. The MMA warps arrive when they have read it; its load warp waits
    OutputWritten = InputsEmpty + LOAD_WARPS  // the pointwise warps have written a step of the output; the signal warp waits
};
static_assert(Weights::STREAMED_FRAGMENTS == 0, "all weights are on chip");

struct SharedStorage {
    unsigned long long barriers[2][8];  // full barrier of states[buffer][tile], padded to 128 bytes
    States states[2][TILES];
    BTile<INPUT_K_TILES> inputs[LOAD_WARPS];
    Sums sums;
    PointwiseStorage<Config> pointwise;
    WeightStorage weight_storage;
    int timed_out;  // the wait of some thread has timed out: nothing more is published
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "WavefrontConfig.shared_bytes");

// The arrays of one layer.
struct Layer {
    const scalar_t *weight_ih, *weight_hh, *bias_ih, *bias_hh;
    scalar_t *output, *saved_gates;
    float* saved_cells;
};

// The input of a layer: rows of `values` values. step_flags: of the blocks that write it, null for x.
struct LayerInput {
    const scalar_t* rows;
    index step, sequence;
    int values;
    const int* step_flags;
};

// Replaces pointwise_forward.cuh's GateInputs: W_ih x is in the sums.
struct FusedInputs {
    __device__ void load(const ForwardParams&, const StatePointers<Config>&, int, int) const {}
    __device__ float at(int, int) const { return 0; }
};

// Stores W_in x, a warp's sums of GRU's gate n so far, as the sums of a fourth gate. W_hn h starts from 0.
__device__ inline void spill_candidate_input(Sums& sums, int sum_buffer, const Thread& thread,
                                             Accumulator (&acc)[M_TILES_PER_WARP]) {
#pragma unroll
    for (int i = 0; i < M_TILES_PER_WARP * 2; i++) {
        const int r = Sums::accumulator_row(thread, i);
        if (r % GATES != GRU_N) continue;
        float* place = sums.ptr(sum_buffer, thread, r) + (GRU_EXTRA - GRU_N) % Sums::SUMS_PER_UNIT;
        float* pair = &acc[i / 2].data[i % 2 * 2];
        place[0] = pair[0], place[Sums::SUMS_PER_UNIT] = pair[1];
        pair[0] = pair[1] = 0;
    }
}

// Computes the sums of every tile and step, by the MMA warps. Those of the inputs come before the wait for the states.
__device__ inline void run_mma_warps(SharedStorage& shared, Weights& weights, const Thread& thread, int steps, int tiles) {
    bool timed_out = false;
    int sum_buffer = 0, iteration = 0, input_buffer = 0;
    for (int t = 0; t < steps; t++)
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            Accumulator acc[M_TILES_PER_WARP] = {};
            named_barrier_sync(WaveBarrier::InputsFull + input_buffer, THREADS + 32);
            jitter(t, 0);
            mma_mainloop<RECURRENT_K_TILES, INPUT_K_TILES>(
                acc, weights, thread_b_ptr(shared.inputs[input_buffer], thread.warp % K_PARTITIONS, thread.lane));
            named_barrier_arrive(WaveBarrier::InputsEmpty + input_buffer, THREADS + 32);
            timed_out |= *(volatile int*)&shared.timed_out;
            if (iteration >= 2) named_barrier_sync(NamedBarrier::SumsEmpty + sum_buffer, BLOCK_THREADS);
            const uint4* b_ptr = thread_b_ptr(shared.states[t % 2][tile], thread.warp % K_PARTITIONS, thread.lane);
            if (t > 0 && !timed_out)
                timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[t % 2][tile]), (t - 1) / 2 % 2);
            if (timed_out) *(volatile int*)&shared.timed_out = 1;
            jitter(t, 1);
            if (CELL == GRU) spill_candidate_input(shared.sums, sum_buffer, thread, acc);
            mma_recurrent(shared.sums, sum_buffer, weights, thread, b_ptr, acc);
            jitter(t, 6);
            named_barrier_arrive(NamedBarrier::SumsFull + sum_buffer, BLOCK_THREADS);
            sum_buffer = 1 - sum_buffer, iteration = iteration < 2 ? iteration + 1 : 2,
            input_buffer = input_buffer + 1 < LOAD_WARPS ? input_buffer + 1 : 0;
        }
}

// Loads the inputs of a tile and step, by a warp. b: the tile's first sequence.
__device__ inline void load_inputs(BTile<INPUT_K_TILES>& inputs, const LayerInput& input, const Thread& thread, int t,
                                   int b) {
    constexpr int VECTORS_PER_SEQUENCE = BTile<INPUT_K_TILES>::VECTORS_PER_SEQUENCE;
#pragma unroll 1
    for (int first = thread.lane; first < 8 * VECTORS_PER_SEQUENCE; first += VECTORS_IN_FLIGHT * 32) {
        uint4 vectors[VECTORS_IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < VECTORS_IN_FLIGHT; i++) {
            const int place = first + i * 32, column = place / VECTORS_PER_SEQUENCE;
            const MatrixRow row = {input.rows + t * input.step + (b + column) * input.sequence,
                                   column < 8 && b + column < thread.batch};
            vectors[i] = load_vector(row, place % VECTORS_PER_SEQUENCE * ELEMENTS_PER_VECTOR, input.values);
        }
#pragma unroll
        for (int i = 0; i < VECTORS_IN_FLIGHT; i++) {
            const int place = first + i * 32;
            if (place < 8 * VECTORS_PER_SEQUENCE)
                *(uint4*)&inputs.at(place % VECTORS_PER_SEQUENCE * ELEMENTS_PER_VECTOR, place / VECTORS_PER_SEQUENCE) =
                    vectors[i];
        }
    }
}

// Loads the inputs of every LOAD_WARPS-th tile and step, by one of LOAD_WARPS warps, as soon as the flags of all blocks below
// say that they are written.
__device__ inline void run_load_warps(SharedStorage& shared, const LayerInput& input, const Thread& thread, int steps,
                                      int tiles) {
    BTile<INPUT_K_TILES>& inputs = shared.inputs[thread.warp];
    const bool polls = input.step_flags && thread.lane < BLOCKS;
    bool timed_out = false, is_first = true;
    int ready_steps = 0;
    for (int t = thread.warp / tiles, tile = thread.warp % tiles; t < steps;) {
        if (polls && !timed_out && ready_steps <= t)
            timed_out = !spin_until([&] { return (ready_steps = ld_acquire(input.step_flags + thread.lane)) > t; });
        if (timed_out) *(volatile int*)&shared.timed_out = 1;
        __syncwarp();
        jitter(t, 7);
        if (!is_first) named_barrier_sync(WaveBarrier::InputsEmpty + thread.warp, THREADS + 32);
        load_inputs(inputs, input, thread, t, thread.first_sequence + tile * 8);
        __syncwarp();
        jitter(t, 8);
        named_barrier_arrive(WaveBarrier::InputsFull + thread.warp, THREADS + 32);
        is_first = false;
        for (tile += LOAD_WARPS; tile >= tiles; tile -= tiles) t++;
    }
}

// Signals each step that the block has written, by the last warp, until a wait times out.
__device__ inline void run_signal_warp(SharedStorage& shared, int* step_flag, const Thread& thread, int steps) {
    for (int t = 0; t < steps; t++) {
        named_barrier_sync(WaveBarrier::OutputWritten, POINTWISE_THREADS + 32);
        jitter(t, 9);
        if (thread.lane == 0 && !*(volatile int*)&shared.timed_out) st_release(step_flag, t + 1);
        __syncwarp();
    }
}

// Parameters of all layers. h0, c0, h_n, c_n [LAYERS, B, H]; strides are those of every layer.
struct Params {
    const scalar_t* x;
    index x_step, x_sequence;
    Layer layers[LAYERS];
    const scalar_t *h0, *c0;
    index output_step, output_sequence;
    scalar_t *h_n, *c_n;
    const length* lengths;
    index row_step, row_sequence;
    int *step_flags, *status;
    int steps, batch;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(BLOCK_THREADS + 32 * (LOAD_WARPS + 1), 1)
    persistent_wave(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const int thread_id = threadIdx.x, rank = block_rank_in_cluster(), sets = (params.batch + TILES * 8 - 1) / (TILES * 8);
    const int layer = blockIdx.x / BLOCKS / sets, set = blockIdx.x / BLOCKS % sets;
    const int number = thread_id < THREADS         ? thread_id
                       : thread_id < BLOCK_THREADS ? thread_id - THREADS
                                                   : thread_id - BLOCK_THREADS;
    const Thread thread = {number, number / 32, number % 32, rank * UNITS, set * TILES * 8, params.batch};
    const Layer& own = params.layers[layer];
    const auto flags_of = [&](int l) { return params.step_flags + ((index)l * sets + set) * BLOCKS; };
    LayerInput input = {params.x, params.x_step, params.x_sequence, INPUTS, nullptr};
    if (layer > 0)
        input = {params.layers[layer - 1].output, params.output_step, params.output_sequence, HIDDEN, flags_of(layer - 1)};
    const auto of_layer = [&](auto* all) { return all ? all + (index)layer * params.batch * HIDDEN : nullptr; };
    const ForwardParams layer_params = {nullptr, 0, 0, own.bias_ih, own.bias_hh, of_layer(params.h0), of_layer(params.c0),
                                        own.output, params.output_step, params.output_sequence, of_layer(params.h_n),
                                        of_layer(params.c_n), params.lengths, own.saved_gates, own.saved_cells, params.row_step,
                                        params.row_sequence, params.status, params.steps, params.batch, 0};
    const int steps = params.steps, tiles = min(TILES, (params.batch - thread.first_sequence + 7) / 8);
    init_mbarriers(shared, 10);
    if (thread_id < THREADS) {
        warpgroup_reg_alloc<MMA_REGISTERS>();
        Weights weights(shared.weight_storage, nullptr, rank, [&](int s, int i) {
            if (s < RECURRENT_K_TILES) return load_a_fragment(own.weight_hh, thread, s, i);
            return load_a_fragment(own.weight_ih, thread, s - RECURRENT_K_TILES, i, INPUT_K_TILES, input.values);
        });
        cluster_sync();
        run_mma_warps(shared, weights, thread, steps, tiles);
    } else if (thread_id < BLOCK_THREADS) {
        warpgroup_reg_dealloc<POINTWISE_REGISTERS>();
        load_carry_and_states(shared, layer_params, thread, tiles);
        cluster_sync();
        run_pointwise_warps(shared, layer_params, thread, tiles, FusedInputs(),
                            [](int) { named_barrier_sync(WaveBarrier::OutputWritten, POINTWISE_THREADS + 32); });
    } else {
        warpgroup_reg_dealloc<LOAD_REGISTERS>();
        cluster_sync();
        if (thread.warp < LOAD_WARPS) run_load_warps(shared, input, thread, steps, tiles);
        else run_signal_warp(shared, flags_of(layer) + rank, thread, steps);
    }
    cluster_sync();
}
