// Maths: as cluster_forward.cu, of small layers: a block has all of W_hh in the registers of its threads, and sequences of its
//   own. Products are fused multiply-adds in float32, whatever the precision. Blocks exchange nothing.
// Layout: of Params (ForwardParams and below), by field: gates, bias_ih, bias_hh, h0, c0, h_n, c_n, output, lengths,
//   saved_gates and saved_cells as in cluster_forward.cu. x, x_step, x_sequence, weight_ih, weight_stream and status: unused
//   weight_hh [G*H, H] scalar_t, read. No two may alias. Alignment: of the element; weight_hh: LOAD_BYTES bytes.
// Launch: a block of BLOCK_THREADS threads for each SEQUENCES sequences, BLOCKS_PER_SM of them on a multiprocessor at once.
//   K_LANES adjacent lanes have UNITS_PER_THREAD units; each has all their gates' rows of W_hh, of every K_LANES-th K_VECTOR
//   columns, the last SMEM_VECTORS times K_VECTOR of these in shared memory. Their sums are added by shuffles, after which each
//   lane has one gate of one unit, of all sequences; the lane of a unit's last gate has its state. Shared bytes:
//   BlockConfig.shared_bytes (blocks/config.py).
// Cost: reads G H^2 values a block, and T B G H; writes T B H; 2 T B G H^2 operations.
// Limits: compute capability 8.0; weights and sums of a thread in its registers; T, B, G * H below 2^30; offsets 64-bit.
// Order: 1. states has two buffers. Those of step t + 1 are written after a barrier that all threads reach after they have read
//      those of step t - 1, and read after one that follows the writes.
//   2. A thread's inputs, state and results are its own. Blocks do not wait for each other, so there is no watchdog.
//   3. Sums are added in one order: bit-equal repeats.
#include "ecornn/common/element_vector.cuh"
#include "ecornn/common/jitter.cuh"
#include "ecornn/common/zero_smem.cuh"
#include "ecornn/ptx/cp_async.cuh"
#include "ecornn/ptx/opaque.cuh"
#include "ecornn/rnn/forward_params.cuh"
#include "ecornn/rnn/rnn_cell.cuh"
#include "lane_sums.cuh"

constexpr int ROWS = UNITS_PER_THREAD * LANES_PER_UNIT;  // of a thread's weights, with one of zeros for each unit of GRU
constexpr int PREFETCH_DISTANCE = 8;                      // steps: memory takes longer than a few of them
constexpr int ELEMENTS_PER_SECTOR = 32 / (int)sizeof(scalar_t);
typedef Operand<HIDDEN> States;
typedef LaneWeights<HIDDEN, ROWS> Weights;

struct SharedStorage {
    States states[2];
    unsigned char weights alignas(16)[Weights::STORAGE_BYTES + 16];
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "BlockConfig.shared_bytes");

// Loads the thread's weights, 0 where there are none.
__device__ inline void load_weights(Weights& weights, const scalar_t* weight_hh, const LaneCoords& lane) {
    constexpr int WIDTH = LOAD_BYTES % (K_VECTOR * sizeof(scalar_t)) == 0 ? K_VECTOR : 1;
    weights.for_each([&](int i, int row, KVector& loaded) {
        const int gate = row % LANES_PER_UNIT, unit = lane.first_unit + row / LANES_PER_UNIT, k = States::k_of(lane.k_lane, i);
        const scalar_t* start = weight_hh + ((index)gate * HIDDEN + unit) * HIDDEN + k;
        KVector vector = {};
#pragma unroll
        for (int v = 0; v < K_VECTOR; v += WIDTH) {
            if (unit >= HIDDEN || k + v >= HIDDEN) continue;
            const ElementVector<WIDTH> elements = *(const ElementVector<WIDTH>*)(start + v);
#pragma unroll
            for (int j = 0; j < WIDTH; j++) vector.data[v + j] = widen(elements.values[j]);
        }
        loaded = vector;
    });
}

// sigmoid(x), or tanh(x), as rnn_cell.cuh computes them, but in one piece of code without branches: lanes of a warp have
// different gates.
__device__ inline float sigmoid_or_tanh(float x, bool is_tanh) {
    const float square = x * x;
#if STORAGE_FLOAT32
    const float high = fmaf(fmaf(fmaf(-0.00628246693f, square, 0.0210777540f), square, -0.0538538583f), square, 0.133326024f);
    unsigned series = __float_as_uint(x * fmaf(fmaf(high, square, -0.333333194f), square, 1.0f));
    opaque(series);  // computed meanwhile, by all lanes
    const float power = exp_approx(is_tanh ? -2.0f * fabsf(x) : -x), inverse = rcp_approx(1.0f + power);
    const float far = copysignf((1.0f - power) * inverse, x), result = is_tanh ? far : inverse;
    return is_tanh && square < 0.3025f ? __uint_as_float(series) : result;
#else
    unsigned series =
        __float_as_uint(x * fmaf(fmaf(fmaf(-0.053968254f, square, 0.13333333f), square, -0.33333333f), square, 1.0f));
    opaque(series);
    const float inverse = sigmoid(is_tanh ? 2.0f * x : x), result = is_tanh ? fmaf(2.0f, inverse, -1.0f) : inverse;
    return is_tanh && square < 0.1f ? __uint_as_float(series) : result;
#endif
}

// A lane's part of a step: what it saves, its gate or GRU's n and W_hn h + b_hn, and, in the lane of the state, the state.
struct LaneStep {
    CellState state;
    float saved, recurrent_n;
};

// Computes the step of all sequences. All lanes of a warp call it, as they exchange their gates. x: with biases. acc[s][0]: the
// lane's sum. before: h of GRU, c of LSTM. The sequences take turns, as in add_halves. meanwhile(): called while gates are on
// their way.
template <typename Meanwhile>
__device__ inline void cell_steps(LaneStep (&results)[SEQUENCES], const LaneCoords& lane, const float (&x)[SEQUENCES],
                                  const float (&acc)[SEQUENCES][ROWS], float bias_n, const float (&before)[SEQUENCES],
                                  Meanwhile meanwhile) {
    float gates[SEQUENCES], first[SEQUENCES], second[SEQUENCES], third[SEQUENCES];
#pragma unroll
    for (int s = 0; s < SEQUENCES && GATES > 1; s++)
        gates[s] = CELL == GRU ? sigmoid(x[s] + acc[s][0]) : sigmoid_or_tanh(x[s] + acc[s][0], lane.gate == LSTM_G);
#pragma unroll
    for (int s = 0; s < SEQUENCES && GATES > 1; s++) {
        first[s] = __shfl_xor_sync(~0u, gates[s], (GATES - 1) ^ 0), second[s] = __shfl_xor_sync(~0u, gates[s], (GATES - 1) ^ 1);
        if (CELL == LSTM) third[s] = __shfl_xor_sync(~0u, gates[s], (GATES - 1) ^ 2);
    }
    meanwhile();
#pragma unroll
    for (int s = 0; s < SEQUENCES; s++) {
        float saved[4] = {};
        if (GATES == 1) results[s] = {cell_forward({}, &x[s], &acc[s][0], 0, saved), 0, 0};
        if (CELL == GRU) {  // of the lane of n: first is r, second z
            const float recurrent_n = acc[s][0] + bias_n, n = tanh_approx(x[s] + first[s] * recurrent_n);
            const float own = lane.gate == GRU_N ? stored_n(n, before[s]) : gates[s];
            results[s] = {{fmaf(second[s], before[s] - n, n), 0}, own, recurrent_n};
        }
        if (CELL == LSTM) {  // of the lane of o: first is i, second f, third g
            const float c = fmaf(second[s], before[s], first[s] * third[s]);
            results[s] = {{gates[s] * tanh_approx(c), c}, gates[s], 0};
        }
    }
}

struct Params : ForwardParams {
    const scalar_t* x;
    index x_step, x_sequence;
    const scalar_t *weight_ih, *weight_hh;
    uint4* weight_stream;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// What a lane reads and writes in memory, of the block's first sequence; pointers go on from step to step.
struct LanePointers {
    const scalar_t* gates;
    scalar_t *output, *saved_gates;
    float* saved_cells;
    index gates_step, output_step, row_step, prefetch_offset;
    int prefetch_end;  // before which step the lane prefetches those PREFETCH_DISTANCE steps ahead: one lane for each sector

    __device__ LanePointers(const Params& params, const LaneCoords& lane, index first_sequence) {
        const int t = params.step(0);
        const index row = t * params.row_step + first_sequence * params.row_sequence;
        gates = params.gates + t * params.gates_step + first_sequence * params.gates_sequence + lane.gate * HIDDEN + lane.unit;
        output = params.output + params.place(t, first_sequence, lane.unit);
        saved_gates = params.saved_gates + (row * 4 + lane.gate) * HIDDEN + lane.unit;
        saved_cells = params.saved_cells + row * HIDDEN + lane.unit;
        gates_step = params.direction() * params.gates_step, output_step = params.direction() * params.output_step;
        row_step = params.direction() * params.row_step * HIDDEN;
        prefetch_end = lane.has_gate() && lane.unit % ELEMENTS_PER_SECTOR == 0 ? params.steps - PREFETCH_DISTANCE : 0;
        prefetch_offset = PREFETCH_DISTANCE * gates_step;
        opaque(gates_step), opaque(output_step), opaque(row_step), opaque(prefetch_offset);
    }
    // Loads the inputs of step t, if any, which `gates` points to, as bits: to convert them would be to wait for them.
    __device__ void load(unsigned (&inputs)[SEQUENCES], const Params& params, const LaneCoords& lane, int sequences, int t) {
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++)
            if (lane.has_gate() && s < sequences && t < params.steps) inputs[s] = raw_bits(gates[s * params.gates_sequence]);
        if (t < prefetch_end)
#pragma unroll
            for (int s = 0; s < SEQUENCES; s++)
                if (s < sequences) prefetch_l2(gates + s * params.gates_sequence + prefetch_offset);
        gates += gates_step;
    }
    // Writes a step's results, then goes on to the next one.
    __device__ void store(const LaneStep (&results)[SEQUENCES], const scalar_t (&h)[SEQUENCES],
                          const bool (&is_active)[SEQUENCES], const Params& params, const LaneCoords& lane, int sequences) {
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++) {
            if (s >= sequences) continue;
            if (lane.has_state()) output[s * params.output_sequence] = is_active[s] ? h[s] : narrow(0.0f);
            if (!SAVE_GATES || GATES == 1 || !is_active[s]) continue;
            const index row = s * params.row_sequence * HIDDEN;
            if (lane.has_gate()) saved_gates[row * 4] = narrow(results[s].saved);
            if (CELL == GRU && lane.has_state()) saved_gates[row * 4 + HIDDEN] = narrow(results[s].recurrent_n);
            if (CELL == LSTM && lane.has_state()) saved_cells[row] = results[s].state.c;
        }
        output += output_step, saved_gates += row_step * 4, saved_cells += row_step;
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS_PER_SM)
    persistent_forward(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const LaneCoords lane(threadIdx.x);
    const index first_sequence = (index)blockIdx.x * SEQUENCES;
    const int sequences = min(SEQUENCES, params.batch - (int)first_sequence);
    Weights weights(shared.weights);
    load_weights(weights, params.weight_hh, lane);
    zero_smem(shared.states, sizeof(shared.states));
    LanePointers pointers(params, lane, first_sequence);
    unsigned inputs[SEQUENCES] = {};
    pointers.load(inputs, params, lane, sequences, 0);
    const bool is_separate = CELL == GRU && lane.gate == GRU_N;
    const int bias_place = lane.gate * HIDDEN + lane.unit;
    const float bias_ih = params.bias_ih && lane.has_gate() ? widen(params.bias_ih[bias_place]) : 0;
    const float bias_hh = params.bias_hh && lane.has_gate() ? widen(params.bias_hh[bias_place]) : 0;
    const float bias = is_separate ? bias_ih : bias_ih + bias_hh;
    __syncthreads();
    scalar_t h[SEQUENCES];
    float carry[SEQUENCES];  // c of LSTM, h of the others, in float32, which h is not once it is published
    int ends[SEQUENCES];
#pragma unroll
    for (int s = 0; s < SEQUENCES; s++) {
        const index b = first_sequence + s, place = b * HIDDEN + lane.unit;
        const bool is_inside = lane.has_state() && s < sequences;
        ends[s] = s < sequences ? clamped_length(LENGTHS ? params.lengths : nullptr, (int)b, params.steps) : 0;
        h[s] = params.h0 && is_inside ? params.h0[place] : narrow(0.0f);
        carry[s] = CELL == LSTM ? (params.c0 && is_inside ? widen(params.c0[place]) : 0) : widen(h[s]);
        if (is_inside) shared.states[0].at(s, lane.unit) = widen(h[s]);
    }
    jitter(-1, 0);
    __syncthreads();
#pragma unroll 1
    for (int t = 0; t < params.steps; t++) {
        float acc[SEQUENCES][ROWS] = {}, x[SEQUENCES];
        weights.fma_lanes(acc, shared.states[t % 2], lane.k_lane);
        jitter(t, 1);
        add_lanes(acc, lane.k_lane);
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++) {
            opaque(inputs[s]);  // not before the product is under way
            x[s] = widen_bits(inputs[s]) + bias;
        }
        LaneStep results[SEQUENCES];
        cell_steps(results, lane, x, acc, bias_hh, carry, [&] { pointers.load(inputs, params, lane, sequences, t + 1); });
        bool is_active[SEQUENCES];
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++) {
            is_active[s] = !LENGTHS || params.step(t) < ends[s];
            const CellState& state = results[s].state;
            if (is_active[s]) h[s] = narrow(state.h), carry[s] = CELL == LSTM ? state.c : state.h;
            if (lane.has_state() && s < sequences) shared.states[(t + 1) % 2].at(s, lane.unit) = widen(h[s]);
        }
        jitter(t, 2);
        __syncthreads();
        pointers.store(results, h, is_active, params, lane, sequences);
    }
#pragma unroll
    for (int s = 0; s < SEQUENCES; s++) {
        if (!lane.has_state() || s >= sequences) continue;
        const index place = (first_sequence + s) * HIDDEN + lane.unit;
        params.h_n[place] = h[s];
        if (CELL == LSTM) params.c_n[place] = narrow(carry[s]);
    }
}
