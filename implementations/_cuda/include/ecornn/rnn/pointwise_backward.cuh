// Pointwise backward: one step backward of a thread's states, independent of how blocks exchange gradients: its inputs, the
// gates' gradients, and what is carried to the step before. A kernel's ThreadCoords, of a thread, have
//   NUM_THREADS, STATES_PER_THREAD: threads, and states of each in a tile; TILE_BATCH: sequences of a tile
//   number, first_sequence, batch: of the thread, of the block's first tile, of all sequences
//   unit(state), sequence(tile, state), sequence_in_tile(state), is_inside(tile, state): of a thread's state
#pragma once
#include "ecornn/ptx/cp_async.cuh"
#include "ecornn/ptx/opaque.cuh"
#include "ecornn/rnn/lengths.cuh"
#include "ecornn/rnn/rnn_cell.cuh"

typedef long long index;

struct StridedTensor {
    const scalar_t* data;
    index step, sequence;
    __device__ const scalar_t& at(int t, index b, int j) const { return data[t * step + b * sequence + j]; }
};

// Parameters of every backward kernel, to which it adds its own. Null: h0, c0, d_h_n, d_c_n for zeros, lengths for all steps.
struct BackwardParams {
    const scalar_t* saved_gates;
    const float* saved_cells;
    index row_step, row_sequence;
    StridedTensor output;
    const scalar_t *h0, *c0;
    StridedTensor d_output;
    const scalar_t *d_h_n, *d_c_n;
    scalar_t *d_gates, *d_recurrent, *d_h0, *d_c0;
    const length* lengths;
    int* status;
    int steps, batch, is_reverse;
    __device__ index row(int t, index b) const { return t * row_step + b * row_sequence; }
    __device__ int time(int i) const { return is_reverse ? i : steps - 1 - i; }  // of the i-th step backward
};

// What a block carries from step to step in shared memory: of d_h and d_c what does not pass through W_hh; sequence lengths.
template <typename ThreadCoords> struct GradientCarry {
    static constexpr int NUM_THREADS = ThreadCoords::NUM_THREADS, STATES_PER_THREAD = ThreadCoords::STATES_PER_THREAD;
    float d_h[TILES][STATES_PER_THREAD][NUM_THREADS], d_c[TILES][STATES_PER_THREAD][NUM_THREADS];
    int ends[TILES][ThreadCoords::TILE_BATCH];

    __device__ void load(const BackwardParams& params, const ThreadCoords& thread) {
#pragma unroll 1
        for (int i = thread.number; i < TILES * ThreadCoords::TILE_BATCH; i += NUM_THREADS) {
            const int b = thread.first_sequence + i;
            ends[0][i] = b < thread.batch ? clamped_length(params.lengths, b, params.steps) : 0;
        }
        for (int tile = 0; tile < TILES; tile++)
            for (int s = 0; s < STATES_PER_THREAD; s++) {
                const index place = (index)thread.sequence(tile, s) * HIDDEN + thread.unit(s);
                const bool is_inside = thread.is_inside(tile, s);
                d_h[tile][s][thread.number] = params.d_h_n && is_inside ? widen(params.d_h_n[place]) : 0;
                d_c[tile][s][thread.number] = params.d_c_n && is_inside ? widen(params.d_c_n[place]) : 0;
            }
    }
};

// Pointers to what a thread reads and writes, kept from tile to tile and step to step: to compute them anew is a chain of
// 64-bit products in each. next: step to the next tile; wrap: after the last tile to the first one's next step. The states of
// a thread are those of one sequence, of units UNITS_APART apart.
template <typename ThreadCoords> struct BackwardPointers {
    static constexpr int UNITS_APART = ThreadCoords::NUM_THREADS / ThreadCoords::TILE_BATCH;
    struct PointerStep {
        index next, wrap;
        __device__ index get(bool is_last) const { return TILES == 1 || is_last ? wrap : next; }
    } row, d_output_step, output_step;  // row: of rows of HIDDEN elements
    const scalar_t *saved_gates, *d_output, *output;
    const float* saved_cells;
    scalar_t *d_gates, *d_recurrent;
    index row_before, output_before;  // to the step that precedes in time

    __device__ BackwardPointers(const BackwardParams& params, const ThreadCoords& thread, int tiles) {
        const int t = params.time(0), direction = params.is_reverse ? 1 : -1;
        const index b = thread.sequence(0, 0), first_row = params.row(t, b) * HIDDEN;
        saved_gates = params.saved_gates + first_row * 4 + thread.unit(0);
        saved_cells = params.saved_cells + first_row + thread.unit(0);
        d_gates = params.d_gates + first_row * GATES + thread.unit(0);
        d_recurrent = params.d_recurrent + first_row + thread.unit(0);
        d_output = &params.d_output.at(t, b, thread.unit(0)), output = &params.output.at(t, b, thread.unit(0));
        row_before = direction * params.row_step * HIDDEN, output_before = direction * params.output.step;
        const auto pointer_step = [&](index step, index sequence) -> PointerStep {
            const index next = sequence * ThreadCoords::TILE_BATCH;
            return {next, direction * step + next * (1 - tiles)};
        };
        row = pointer_step(params.row_step * HIDDEN, params.row_sequence * HIDDEN);
        d_output_step = pointer_step(params.d_output.step, params.d_output.sequence);
        output_step = pointer_step(params.output.step, params.output.sequence);
        if (TILES > 1) opaque(row.next), opaque(d_output_step.next);
        opaque(row.wrap), opaque(d_output_step.wrap), opaque(row_before);
        if (CELL != LSTM) opaque(output_step.next), opaque(output_step.wrap), opaque(output_before);
    }
    // Go on after a tile, of what is loaded and of what is stored.
    __device__ void advance_inputs(bool is_last) {
        const index rows = row.get(is_last);
        saved_gates += rows * 4, saved_cells += rows, d_output += d_output_step.get(is_last);
        if (CELL != LSTM) output += output_step.get(is_last);
    }
    __device__ void advance_gradients(bool is_last) {
        const index rows = row.get(is_last);
        d_gates += rows * GATES, d_recurrent += rows;
    }
};

// Inputs of a step for a thread's states, loaded ahead of their use, as bits: to convert them would be to wait for them.
// Where there is nothing to load something else is loaded, so that no branch copies what has not arrived yet.
template <typename ThreadCoords> struct GateInputs {
    static constexpr int STATES_PER_THREAD = ThreadCoords::STATES_PER_THREAD;
    unsigned saved_gates[STATES_PER_THREAD][4], d_output[STATES_PER_THREAD], h[STATES_PER_THREAD];
    float c[STATES_PER_THREAD], c_before[STATES_PER_THREAD];

    __device__ void load(const BackwardParams& params, const ThreadCoords& thread, int tile, int i) {
        const int t = params.time(i), before = min(max(params.time(i + 1), 0), params.steps - 1);
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const index b = min(thread.sequence(tile, s), thread.batch - 1), row = params.row(t, b);
            const int j = min(thread.unit(s), HIDDEN - 1);
            d_output[s] = raw_bits(params.d_output.at(t, b, j));
            if (CELL != LSTM) h[s] = raw_bits(params.output.at(CELL == GRU ? before : t, b, j));
            if (CELL == LSTM) c[s] = params.saved_cells[row * HIDDEN + j];
            if (CELL == LSTM) c_before[s] = params.saved_cells[params.row(before, b) * HIDDEN + j];
#pragma unroll
            for (int gate = 0; GATES > 1 && gate < 4; gate++)
                saved_gates[s][gate] = raw_bits(params.saved_gates[(row * 4 + gate) * HIDDEN + j]);
        }
    }

    // Loads those of the tile and step to which pointers are. has_before: a step precedes it in time.
    __device__ void load(const BackwardPointers<ThreadCoords>& pointers, const ThreadCoords& thread, int tile,
                         bool has_before) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            constexpr int APART = BackwardPointers<ThreadCoords>::UNITS_APART;
            if (!thread.is_inside(tile, s)) continue;
            d_output[s] = raw_bits(pointers.d_output[s * APART]);
            if (CELL == LSTM) c[s] = pointers.saved_cells[s * APART];
            if (CELL == LSTM && has_before) c_before[s] = pointers.saved_cells[pointers.row_before + s * APART];
            if (GATES == 1) h[s] = raw_bits(pointers.output[s * APART]);
            if (CELL == GRU && has_before) h[s] = raw_bits(pointers.output[pointers.output_before + s * APART]);
#pragma unroll
            for (int gate = 0; GATES > 1 && gate < 4; gate++)
                saved_gates[s][gate] = raw_bits(pointers.saved_gates[gate * HIDDEN + s * APART]);
        }
    }

    // Prefetches into the L2 cache what the i-th step loads. Of cell states only c_before, as c was that of step i - 1.
    __device__ static void prefetch(const BackwardParams& params, const ThreadCoords& thread, int tile, int i) {
        const int t = params.time(i), before = min(max(params.time(i + 1), 0), params.steps - 1);
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            if (!thread.is_inside(tile, s)) continue;
            const index b = thread.sequence(tile, s), row = params.row(t, b);
            const int j = thread.unit(s);
            prefetch_l2(&params.d_output.at(t, b, j));
            if (CELL != LSTM) prefetch_l2(&params.output.at(CELL == GRU ? before : t, b, j));
            if (CELL == LSTM) prefetch_l2(params.saved_cells + params.row(before, b) * HIDDEN + j);
#pragma unroll
            for (int gate = 0; GATES > 1 && gate < 4; gate++) prefetch_l2(params.saved_gates + (row * 4 + gate) * HIDDEN + j);
        }
    }

    __device__ LocalGradients local_gradients(const BackwardParams& params, const ThreadCoords& thread, int tile, int s,
                                              int before, int end) const {
        float saved[4], state = widen_bits(h[s]), c_state = c_before[s];
#pragma unroll
        for (int gate = 0; gate < 4; gate++) saved[gate] = widen_bits(saved_gates[s][gate]);
        if (GATES > 1 && (before < 0 || before >= end)) {
            const scalar_t* initial = CELL == GRU ? params.h0 : params.c0;
            const index place = (index)thread.sequence(tile, s) * HIDDEN + thread.unit(s);
            state = c_state = initial && thread.is_inside(tile, s) ? widen(initial[place]) : 0;
        }
        return cell_local_gradients(saved, state, c[s], c_state);
    }
};

// Where gradients are stored, computed anew in each step. row: of the state's.
struct ComputedPlaces {
    __device__ index row(const BackwardParams& params, int t, index b) const { return params.row(t, b); }
    __device__ scalar_t& d_gates(const BackwardParams& params, index row, int gate, int j) const {
        return params.d_gates[(row * GATES + gate) * HIDDEN + j];
    }
    __device__ scalar_t& d_recurrent(const BackwardParams& params, index row, int j) const {
        return params.d_recurrent[row * HIDDEN + j];
    }
};

// The same by pointers that go on from step to step.
struct PointedPlaces {
    scalar_t *gates, *recurrent;
    __device__ index row(const BackwardParams&, int, index) const { return 0; }
    __device__ scalar_t& d_gates(const BackwardParams&, index, int gate, int) const { return gates[gate * HIDDEN]; }
    __device__ scalar_t& d_recurrent(const BackwardParams&, index, int) const { return *recurrent; }
};

// Computes and stores the gates' gradients. d_h: the whole gradient of the state after the step. publish(gate, gradient): for
// the other units. places: where the state's gradients are stored.
template <typename ThreadCoords, typename Publish, typename Places = ComputedPlaces>
__device__ inline void pointwise_backward(GradientCarry<ThreadCoords>& carry, const BackwardParams& params,
                                          const LocalGradients& local_gradients, const ThreadCoords& thread, int tile, int s,
                                          int i, float d_h, Publish publish, Places places = {}) {
    const int t = params.time(i), j = thread.unit(s);
    const bool is_inside = thread.is_inside(tile, s), is_active = is_inside && t < carry.ends[tile][thread.sequence_in_tile(s)];
    const bool is_some = is_active && (CELL != RNN_RELU || local_gradients.gates[0] > 0);
    const index row = places.row(params, t, thread.sequence(tile, s));
    float &dh_skip = carry.d_h[tile][s][thread.number], &d_c = carry.d_c[tile][s][thread.number];
    const float all_d_c = CELL == LSTM ? fmaf(d_h, local_gradients.dc_dh, d_c) : 0;
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) {
        const scalar_t gradient =
            narrow(is_some ? (CELL == LSTM && gate != LSTM_O ? all_d_c : d_h) * local_gradients.gates[gate] : 0);
        const bool has_separate_recurrent_gradient = CELL == GRU && gate == GRU_N;
        const scalar_t recurrent_gradient =
            has_separate_recurrent_gradient ? narrow(is_some ? d_h * local_gradients.recurrent : 0) : gradient;
        publish(gate, recurrent_gradient);
        if (is_inside) places.d_gates(params, row, gate, j) = gradient;
        if (is_inside && has_separate_recurrent_gradient) places.d_recurrent(params, row, j) = recurrent_gradient;
    }
    dh_skip = !is_active ? d_h : CELL == GRU ? d_h * local_gradients.h : 0;
    if (CELL == LSTM && is_active) d_c = all_d_c * local_gradients.c;
}

// Stores the gradients of the initial states.
template <typename ThreadCoords>
__device__ inline void store_initial_state_gradients(const GradientCarry<ThreadCoords>& carry, const BackwardParams& params,
                                                     const ThreadCoords& thread, int tile, int s, float d_h) {
    if (!thread.is_inside(tile, s)) return;
    const index place = (index)thread.sequence(tile, s) * HIDDEN + thread.unit(s);
    params.d_h0[place] = narrow(d_h);
    if (CELL == LSTM) params.d_c0[place] = narrow(carry.d_c[tile][s][thread.number]);
}

// After a timeout all results are NaN.
template <typename ThreadCoords>
__device__ inline void write_nan(const BackwardParams& params, const ThreadCoords& thread, int tile) {
    for (int s = 0; s < ThreadCoords::STATES_PER_THREAD; s++) {
        if (!thread.is_inside(tile, s)) continue;
        const index b = thread.sequence(tile, s), place = b * HIDDEN + thread.unit(s);
        params.d_h0[place] = narrow(CUDART_NAN_F);
        if (CELL == LSTM) params.d_c0[place] = narrow(CUDART_NAN_F);
        for (int t = 0; t < params.steps; t++) {
            for (int gate = 0; gate < GATES; gate++)
                params.d_gates[(params.row(t, b) * GATES + gate) * HIDDEN + thread.unit(s)] = narrow(CUDART_NAN_F);
            if (CELL == GRU) params.d_recurrent[params.row(t, b) * HIDDEN + thread.unit(s)] = narrow(CUDART_NAN_F);
        }
    }
}
