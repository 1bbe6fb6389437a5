// Maths: the backward pass of block_forward.cu: as cluster_backward.cu.
// Layout: of Params (BackwardParams and below), by field, as in cluster_backward.cu. weight_stream and status: unused.
// Launch: a block of BLOCK_THREADS threads for each SEQUENCES sequences, BLOCKS_PER_SM of them on a multiprocessor at once.
//   K_LANES adjacent lanes have UNITS_PER_THREAD units; each has all their columns of W_hh, of every K_LANES-th K_VECTOR rows,
//   the last SMEM_VECTORS times K_VECTOR of these in shared memory. Their sums are added by shuffles. Each lane then has one
//   gate of one unit, of all sequences; lanes of a unit all compute what it carries. Shared bytes: BlockConfig.shared_bytes
//   (blocks/config.py).
// Cost: reads G H^2 values a block, and T B S H, S as in cluster_backward.cu; writes T B G H (GRU: 4 H); 2 T B G H^2
//   operations.
// Limits: compute capability 8.0; weights and sums of a thread in its registers and shared memory, by way of which W_hh comes;
//   T, B, G * H below 2^30; offsets 64-bit.
// Order: 1. gradients has two buffers. Those of step i + 1 are written after a barrier that all threads reach after they have
//      read those of step i - 1, and read after one that follows the writes.
//   2. The memory that W_hh comes by is used again after a barrier at which all threads have loaded their weights.
//   3. A thread's inputs, carry and results are its own. Blocks do not wait for each other, so there is no watchdog.
//   4. d_gates may be LSTM's saved_gates: a step's row is written after a barrier before which all of the unit's lanes used it.
//   5. Sums are added in one order, and a unit's lanes have the same bits: bit-equal repeats.
#include "ecornn/common/jitter.cuh"
#include "ecornn/common/zero_smem.cuh"
#include "ecornn/ptx/opaque.cuh"
#include "ecornn/rnn/pointwise_backward.cuh"
#include "ecornn/rnn/rnn_cell.cuh"
#include "lane_sums.cuh"

constexpr int PREFETCH_DISTANCE = 8;  // steps: memory takes longer than a few of them
constexpr int WEIGHT_ROW = HIDDEN + 1;  // elements from row to row, so that rows that lanes read at once are in other banks
typedef Operand<GATES * HIDDEN> Gradients;
typedef LaneWeights<GATES * HIDDEN, UNITS_PER_THREAD> Weights;

struct SharedStorage {
    union {
        scalar_t staged[GATES * HIDDEN * WEIGHT_ROW];  // W_hh, before the first step
        Gradients gradients[2];
    };
    unsigned char weights alignas(16)[Weights::STORAGE_BYTES + 16];
};
static_assert(sizeof(SharedStorage) <= SHARED_BYTES, "BlockConfig.shared_bytes");

// Loads the thread's weights by way of shared memory, 0 where there are none: its rows are far apart in memory.
__device__ inline void load_weights(Weights& weights, scalar_t* staged, const scalar_t* weight_hh, const LaneCoords& lane) {
#pragma unroll 16
    for (int i = threadIdx.x; i < GATES * HIDDEN * HIDDEN; i += BLOCK_THREADS)
        staged[i / HIDDEN * WEIGHT_ROW + i % HIDDEN] = weight_hh[i];
    __syncthreads();
    weights.for_each([&](int i, int u, KVector& loaded) {
        const int unit = lane.first_unit + u, row = Gradients::k_of(lane.k_lane, i);
        KVector vector;
#pragma unroll
        for (int v = 0; v < K_VECTOR; v++)
            vector.data[v] =
                row + v < GATES * HIDDEN && unit < HIDDEN ? widen(staged[(row + v) * WEIGHT_ROW + unit]) : 0;
        loaded = vector;
    });
    jitter(-1, 0);
    __syncthreads();
}

// What a lane reads of a step, as bits: to convert them would be to wait for them. c_before: of the step that precedes.
struct LaneInputs {
    unsigned gates[4], d_output, h;
    float c_before;
};

// What a lane reads and writes in memory, of the block's first sequence; pointers go on from step to step by what is kept in
// registers, or it would be a product of 64 bits in each.
struct LanePointers {
    const scalar_t *saved_gates, *d_output, *h;
    const float* saved_cells;
    scalar_t *d_gates, *d_recurrent;
    index gates_step, cells_step, d_output_step, h_step, d_gates_step;
    // One lane prefetches each sector, in steps of bytes: saved gates that of a unit that is a multiple of 8, cells and d_output
    // that of the next one.
    const char* prefetched;
    index prefetch_step, prefetch_sequence;
    int prefetch_end;  // before which step

    __device__ LanePointers(const BackwardParams& params, const LaneCoords& lane, index first_sequence) {
        const int t = params.time(0), direction = params.is_reverse ? 1 : -1;
        const index row = params.row(t, first_sequence);
        saved_gates = params.saved_gates + row * 4 * HIDDEN + lane.unit;
        saved_cells = params.saved_cells + row * HIDDEN + lane.unit;
        d_output = &params.d_output.at(t, first_sequence, lane.unit), h = &params.output.at(t, first_sequence, lane.unit);
        d_gates = params.d_gates + (row * GATES + lane.gate) * HIDDEN + lane.unit;
        d_recurrent = params.d_recurrent + row * HIDDEN + lane.unit;
        cells_step = direction * params.row_step * HIDDEN, gates_step = cells_step * 4, d_gates_step = cells_step * GATES;
        d_output_step = direction * params.d_output.step, h_step = direction * params.output.step;
        opaque(cells_step), opaque(gates_step), opaque(d_gates_step), opaque(d_output_step), opaque(h_step);
        const bool prefetches_gates = GATES > 1 && lane.unit % 8 == 0, is_next = lane.unit % 8 == (GATES > 1);
        const bool prefetches_cells = CELL == LSTM && is_next && lane.gate == 1;
        const index row_sequence = params.row_sequence * HIDDEN * (int)sizeof(float);
        prefetched = (const char*)(prefetches_gates ? saved_gates + lane.gate * HIDDEN : d_output);
        prefetch_step = (prefetches_gates ? gates_step : d_output_step) * (int)sizeof(scalar_t);
        prefetch_sequence = prefetches_gates ? params.row_sequence * 4 * HIDDEN : params.d_output.sequence;
        prefetch_sequence *= (int)sizeof(scalar_t);
        if (prefetches_cells)
            prefetched = (const char*)saved_cells, prefetch_step = cells_step * 4, prefetch_sequence = row_sequence;
        prefetched += PREFETCH_DISTANCE * prefetch_step;
        opaque(prefetch_step);
        const bool prefetches = prefetches_gates || prefetches_cells || (is_next && lane.gate == 0);
        prefetch_end = prefetches && lane.unit < HIDDEN ? params.steps - PREFETCH_DISTANCE : 0;
    }

    // Loads step i's inputs, if any, to which pointers are; of cells and GRU's h those of the step that precedes, if any.
    __device__ void load(LaneInputs (&inputs)[SEQUENCES], const BackwardParams& params, const LaneCoords& lane, int sequences,
                         int i) {
        const bool is_unit = lane.unit < HIDDEN && i < params.steps, has_before = i + 1 < params.steps;
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++) {
            const index row = s * params.row_sequence * HIDDEN, of_h = s * params.output.sequence;
            if (!is_unit || s >= sequences) continue;
            inputs[s].d_output = raw_bits(d_output[s * params.d_output.sequence]);
#pragma unroll
            for (int gate = 0; GATES > 1 && gate < 4; gate++)
                inputs[s].gates[gate] = raw_bits(saved_gates[row * 4 + gate * HIDDEN]);
            if (CELL == LSTM && has_before) inputs[s].c_before = saved_cells[cells_step + row];
            if (CELL == GRU && has_before) inputs[s].h = raw_bits(h[h_step + of_h]);
            if (GATES == 1) inputs[s].h = raw_bits(h[of_h]);
        }
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++)
            if (s < sequences && i < prefetch_end) prefetch_l2(prefetched + s * prefetch_sequence);
        saved_gates += gates_step, saved_cells += cells_step, d_output += d_output_step, h += h_step;
        prefetched += prefetch_step;
    }
    // Writes the gradients of a step, then goes on to the next one.
    __device__ void store(const scalar_t (&gradients)[SEQUENCES], const scalar_t (&recurrent)[SEQUENCES],
                          const BackwardParams& params, const LaneCoords& lane, int sequences) {
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++) {
            if (!lane.has_gate() || s >= sequences) continue;
            const index row = s * params.row_sequence * HIDDEN;
            d_gates[row * GATES] = gradients[s];
            if (CELL == GRU && lane.gate == GRU_N) d_recurrent[row] = recurrent[s];
        }
        d_gates += d_gates_step, d_recurrent += cells_step;
    }
};

struct Params : BackwardParams {
    const scalar_t* weight_hh;
    uint4* weight_stream;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// The gate's own value of an array of a thread's registers, which have no index.
__device__ inline float of_gate(const float (&values)[GATES], int gate) {
    float value = values[0];
#pragma unroll
    for (int i = 1; i < GATES; i++) value = gate == i ? values[i] : value;
    return value;
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS_PER_SM)
    persistent_backward(const __grid_constant__ Params params) {
    SharedStorage& shared = *(SharedStorage*)dynamic_smem();
    const LaneCoords lane(threadIdx.x);
    const index first_sequence = (index)blockIdx.x * SEQUENCES;
    const int sequences = min(SEQUENCES, params.batch - (int)first_sequence), steps = params.steps;
    LanePointers pointers(params, lane, first_sequence);
    LaneInputs inputs[SEQUENCES] = {};
    Weights weights(shared.weights);
    load_weights(weights, shared.staged, params.weight_hh, lane);
    zero_smem(&shared.gradients, sizeof(shared.gradients));
    // Of the state what does not pass through W_hh; c of the step that comes next, and of the state before the first one.
    float d_h[SEQUENCES], d_c[SEQUENCES], c[SEQUENCES], initial[SEQUENCES];
    int ends[SEQUENCES];
#pragma unroll
    for (int s = 0; s < SEQUENCES; s++) {
        const index b = first_sequence + s, place = b * HIDDEN + lane.unit;
        const bool is_inside = lane.unit < HIDDEN && s < sequences;
        const scalar_t* state = CELL == LSTM ? params.c0 : params.h0;
        ends[s] = s < sequences ? clamped_length(params.lengths, (int)b, steps) : 0;
        d_h[s] = params.d_h_n && is_inside ? widen(params.d_h_n[place]) : 0;
        d_c[s] = CELL == LSTM && params.d_c_n && is_inside ? widen(params.d_c_n[place]) : 0;
        initial[s] = GATES > 1 && state && is_inside ? widen(state[place]) : 0;
        c[s] = CELL == LSTM && is_inside ? *(pointers.saved_cells + s * params.row_sequence * HIDDEN) : 0;
    }
    pointers.load(inputs, params, lane, sequences, 0);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i <= steps; i++) {  // at the last one for the gradients of the initial states alone
        float acc[SEQUENCES][UNITS_PER_THREAD] = {}, d_output[SEQUENCES];
        weights.fma_lanes(acc, shared.gradients[(i + 1) % 2], lane.k_lane);
        jitter(i, 1);
        LocalGradients local_gradients[SEQUENCES];
        bool is_active[SEQUENCES];
        const int t = params.time(i), before = params.time(i + 1);
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++) {
            float saved[4];
#pragma unroll
            for (int gate = 0; gate < 4; gate++) saved[gate] = widen_bits(inputs[s].gates[gate]);
            const bool is_first = before < 0 || before >= ends[s];
            const float c_before = is_first ? initial[s] : inputs[s].c_before;
            const float h = CELL == GRU && is_first ? initial[s] : widen_bits(inputs[s].h);
            local_gradients[s] = cell_local_gradients(saved, h, c[s], c_before);
            is_active[s] = i < steps && t < ends[s];
            d_output[s] = is_active[s] ? widen_bits(inputs[s].d_output) : 0;
            c[s] = inputs[s].c_before;
        }
        pointers.load(inputs, params, lane, sequences, i + 1);
        add_lanes(acc, lane.k_lane);
        scalar_t gradients[SEQUENCES], recurrent[SEQUENCES];
#pragma unroll
        for (int s = 0; s < SEQUENCES; s++) {
            const float all = d_h[s] + d_output[s] + (i > 0 ? acc[s][0] : 0);  // infinite weights times no gradients are none
            const float all_d_c = CELL == LSTM ? fmaf(all, local_gradients[s].dc_dh, d_c[s]) : 0;
            const float own = of_gate(local_gradients[s].gates, lane.gate);
            const bool is_some = is_active[s] && (CELL != RNN_RELU || own > 0);
            gradients[s] = narrow(is_some ? (CELL == LSTM && lane.gate != LSTM_O ? all_d_c : all) * own : 0);
            recurrent[s] = CELL == GRU && lane.gate == GRU_N ? narrow(is_some ? all * local_gradients[s].recurrent : 0)
                                                             : gradients[s];
            d_h[s] = !is_active[s] ? all : CELL == GRU ? all * local_gradients[s].h : 0;
            if (CELL == LSTM && is_active[s]) d_c[s] = all_d_c * local_gradients[s].c;
            if (lane.has_gate() && s < sequences)
                shared.gradients[i % 2].at(s, lane.gate * HIDDEN + lane.unit) = widen(recurrent[s]);
        }
        jitter(i, 2);
        __syncthreads();
        if (i < steps) pointers.store(gradients, recurrent, params, lane, sequences);
    }
#pragma unroll
    for (int s = 0; s < SEQUENCES; s++) {
        if (lane.gate > 0 || lane.unit >= HIDDEN || s >= sequences) continue;
        const index place = (first_sequence + s) * HIDDEN + lane.unit;
        params.d_h0[place] = narrow(d_h[s]);
        if (CELL == LSTM) params.d_c0[place] = narrow(d_c[s]);
    }
}
