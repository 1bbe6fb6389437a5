// Pointwise forward: the gates of a step of a tile of sequences, for the units that a block owns, independent of how their sums
// are computed and blocks exchange states: inputs, operands, carry and results. A kernel's Config has
//   NUM_POINTWISE_THREADS, STATES_PER_THREAD: threads, and states of each in a tile; TILE_BATCH: sequences of a tile
//   unit_of_state(thread, state), sequence_of_state(thread, state): of a thread's state, TILE_BATCH or more where there is none
//   HAS_FUSED_INPUTS: whether W_ih x is among the sums
#pragma once
#include "ecornn/ptx/opaque.cuh"
#include "ecornn/ptx/cp_async.cuh"
#include "ecornn/rnn/forward_params.cuh"
#include "ecornn/rnn/rnn_cell.cuh"

constexpr int PREFETCH_DISTANCE = 3;  // steps

struct alignas(16) GateVector {
    float data[4];
};

// A block's shared memory for all its tiles, but for their states and sums. ends: sequence lengths.
template <typename Config> struct PointwiseStorage {
    GateVector bias[UNITS];
    // c of LSTM, h of the others, in float32, which h is not once it is published. Each value is private to its thread.
    float carry[TILES][Config::STATES_PER_THREAD][Config::NUM_POINTWISE_THREADS];
    int ends[TILES][Config::TILE_BATCH];
};

// A thread within its role. number and warp count within the role: an MMA thread and a pointwise thread may have the same.
// tiles_with_state: in how many of the tiles a thread has the state, from the first on.
template <typename Config> struct ThreadCoords {
    static constexpr int TILE_BATCH = Config::TILE_BATCH;
    int number, warp, lane, first_unit, first_sequence, batch;
    __device__ int local_unit(int state) const { return Config::unit_of_state(number, state); }
    __device__ int sequence_in_tile(int state) const { return Config::sequence_of_state(number, state); }
    __device__ int unit(int state) const { return first_unit + local_unit(state); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * TILE_BATCH + sequence_in_tile(state); }
    __device__ int tiles_with_state(int state) const {
        return sequence_in_tile(state) < TILE_BATCH && unit(state) < HIDDEN
                   ? (batch - sequence(0, state) + TILE_BATCH - 1) / TILE_BATCH
                   : 0;
    }
};

// Loads biases, sequence lengths and the carry; a barrier of the block is to follow.
template <typename Config>
__device__ inline void load_biases_and_carry(PointwiseStorage<Config>& pointwise, const ForwardParams& params,
                                             const ThreadCoords<Config>& thread) {
    constexpr int NUM_THREADS = Config::NUM_POINTWISE_THREADS;
    for (int i = thread.number; i < TILES * Config::TILE_BATCH; i += NUM_THREADS) {
        const int b = thread.first_sequence + i;
        pointwise.ends[0][i] = b < thread.batch ? clamped_length(params.lengths, b, params.steps) : 0;
    }
    for (int i = thread.number; i < GATES * UNITS; i += NUM_THREADS) {
        const int gate = i / UNITS, unit = i % UNITS, j = gate * HIDDEN + thread.first_unit + unit;
        const bool is_inside = thread.first_unit + unit < HIDDEN;
        const float bias_ih = params.bias_ih && is_inside ? widen(params.bias_ih[j]) : 0;
        const float bias_hh = params.bias_hh && is_inside ? widen(params.bias_hh[j]) : 0;
        const bool is_separate = CELL == GRU && gate == GRU_N;
        pointwise.bias[unit].data[gate] = is_separate ? bias_ih : bias_ih + bias_hh;
        if (is_separate) pointwise.bias[unit].data[GRU_EXTRA] = bias_hh;
    }
    const scalar_t* carry = CELL == LSTM ? params.c0 : params.h0;
    for (int tile = 0; tile < TILES; tile++)
        for (int s = 0; s < Config::STATES_PER_THREAD; s++) {
            const index place = (index)thread.sequence(tile, s) * HIDDEN + thread.unit(s);
            pointwise.carry[tile][s][thread.number] = carry && tile < thread.tiles_with_state(s) ? widen(carry[place]) : 0;
        }
}

// Loads the initial states of all units of a tile into memory that was set to 0.
template <typename States, typename Config>
__device__ inline void load_initial_states(States& states, const ForwardParams& params, const ThreadCoords<Config>& thread,
                                           int tile) {
    for (int i = thread.number; params.h0 && i < 8 * HIDDEN; i += Config::NUM_POINTWISE_THREADS) {
        const int b = thread.first_sequence + tile * 8 + i / HIDDEN;
        if (b < thread.batch) states.at(i % HIDDEN, i / HIDDEN) = params.h0[(index)b * HIDDEN + i % HIDDEN];
    }
}

// Loads the initial states of a thread's own units.
template <typename Own, typename Config>
__device__ inline void load_own_initial_state(Own& own, const ForwardParams& params, const ThreadCoords<Config>& thread,
                                              int tile) {
    for (int s = 0; s < Config::STATES_PER_THREAD; s++)
        if (tile < thread.tiles_with_state(s))
            own.at(thread.unit(s), thread.sequence_in_tile(s)) =
                params.h0[(index)thread.sequence(tile, s) * HIDDEN + thread.unit(s)];
}

// Pointers to a thread's states in memory, advanced tile by tile and step by step. next: step to the next tile; wrap: after the
// last tile to the first one's next step.
template <typename Config> struct StatePointers {
    static constexpr int STATES_PER_THREAD = Config::STATES_PER_THREAD, TILE_BATCH = Config::TILE_BATCH;
    const scalar_t* gates[STATES_PER_THREAD];
    scalar_t *output[STATES_PER_THREAD], *saved_gates[STATES_PER_THREAD];
    float* saved_cells[STATES_PER_THREAD];
    int tiles_with_state[STATES_PER_THREAD];
    bool issues_prefetch[STATES_PER_THREAD];  // one thread for every 16 bytes: each prefetch takes time
    struct PointerStep {
        index next, wrap;
    } gates_step, output_step, rows_step;
    index prefetch_offset;  // of gates, in PREFETCH_DISTANCE steps

    __device__ StatePointers(const ForwardParams& params, const ThreadCoords<Config>& thread, int tiles) {
        const int t = params.step(0);
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const index b = thread.sequence(0, s), row = t * params.row_step + b * params.row_sequence;
            gates[s] = params.gates + t * params.gates_step + b * params.gates_sequence + thread.unit(s);
            output[s] = params.output + params.place(t, b, thread.unit(s));
            saved_gates[s] = params.saved_gates + row * 4 * HIDDEN + thread.unit(s),
            saved_cells[s] = params.saved_cells + row * HIDDEN + thread.unit(s);
            tiles_with_state[s] = thread.tiles_with_state(s),
            issues_prefetch[s] = thread.local_unit(s) % ELEMENTS_PER_VECTOR == 0;
        }
        const auto pointer_step = [&](index step, index sequence) -> PointerStep {
            return {sequence * TILE_BATCH, params.direction() * step + sequence * (1 - tiles) * TILE_BATCH};
        };
        gates_step = pointer_step(params.gates_step, params.gates_sequence),
        output_step = pointer_step(params.output_step, params.output_sequence);
        rows_step = pointer_step(params.row_step, params.row_sequence),
        prefetch_offset = params.direction() * PREFETCH_DISTANCE * params.gates_step;
    }

    // Keeps in registers what the compiler would otherwise recompute in each step, one multiplication waiting for the other.
    __device__ void pin_in_registers() {
        opaque(gates_step.next), opaque(gates_step.wrap), opaque(output_step.next), opaque(output_step.wrap),
            opaque(prefetch_offset);
    }

    // Advances what is loaded; `advance` what is stored.
    __device__ void advance_gates(bool is_last) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) gates[s] += is_last ? gates_step.wrap : gates_step.next;
    }
    __device__ void advance(bool is_last) {
        const index rows = is_last ? rows_step.wrap : rows_step.next;
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            output[s] += is_last ? output_step.wrap : output_step.next;
            if (SAVE_GATES) saved_gates[s] += rows * 4 * HIDDEN, saved_cells[s] += rows * HIDDEN;
        }
    }
};

// The gate inputs of a thread's states, loaded a tile ahead of their use, as bits: to convert them would be to wait for them.
// They are prefetched into L2 PREFETCH_DISTANCE steps earlier, as memory may take longer than a step.
template <typename Config> struct GateInputs {
    static constexpr int STATES_PER_THREAD = Config::STATES_PER_THREAD;
    unsigned data[STATES_PER_THREAD][GATES];
    __device__ float at(int s, int gate) const {
        unsigned bits = data[s][gate];
        opaque(bits);  // not before the product is under way
        return widen_bits(bits);
    }
    __device__ void load(const ForwardParams& params, const StatePointers<Config>& pointers, int tile, int t) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            if (tile >= pointers.tiles_with_state[s]) continue;
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) data[s][gate] = raw_bits(pointers.gates[s][gate * HIDDEN]);
            if (!pointers.issues_prefetch[s] || t + PREFETCH_DISTANCE >= params.steps) continue;
            const scalar_t* next = pointers.gates[s] + pointers.prefetch_offset;
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) prefetch_l2(next + gate * HIDDEN);
        }
    }
};

// Loads the gate inputs of the tile after this one, or of the first tile's next step, if any. inputs: GateInputs, or a struct
// with its functions.
template <typename In, typename Config>
__device__ inline void load_next_inputs(In& inputs, StatePointers<Config>& pointers, const ForwardParams& params, int tiles,
                                        int tile, int t) {
    const bool is_last = tile + 1 == tiles;
    pointers.advance_gates(is_last);
    if (!is_last || t + 1 < params.steps) inputs.load(params, pointers, is_last ? 0 : tile + 1, t + is_last);
}

// The other operands of a thread's states, loaded before their sums are full.
template <typename Config> struct GateOperands {
    static constexpr int STATES_PER_THREAD = Config::STATES_PER_THREAD;
    float x[STATES_PER_THREAD][GATES], bias_n[STATES_PER_THREAD], carry[STATES_PER_THREAD];
    bool is_active[STATES_PER_THREAD];
    template <typename In>
    __device__ GateOperands(const PointwiseStorage<Config>& pointwise, const In& inputs, const ThreadCoords<Config>& thread,
                            int tile, int t) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const GateVector bias = pointwise.bias[thread.local_unit(s)];
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) x[s][gate] = inputs.at(s, gate) + bias.data[gate];
            bias_n[s] = bias.data[GRU_EXTRA], carry[s] = pointwise.carry[tile][s][thread.number];
            is_active[s] = !LENGTHS || t < pointwise.ends[tile][thread.sequence_in_tile(s) % Config::TILE_BATCH];
        }
    }
};

template <typename Config>
__device__ inline CellState cell_update(const GateVector& sums, const GateOperands<Config>& operands, int s,
                                        float* saved_gates) {
    float x[GATES], recurrent[GATES];
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) x[gate] = operands.x[s][gate], recurrent[gate] = sums.data[gate];
    if (CELL == GRU && Config::HAS_FUSED_INPUTS) x[GRU_N] += sums.data[GRU_EXTRA];  // W_in x
    return cell_forward({operands.carry[s], operands.carry[s]}, x, recurrent, operands.bias_n[s], saved_gates);
}

// A step's result for a thread's states, h as it is published: to be written after that.
template <typename Config> struct StepResult {
    static constexpr int STATES_PER_THREAD = Config::STATES_PER_THREAD;
    CellState states[STATES_PER_THREAD];
    scalar_t h[STATES_PER_THREAD];
    float saved_gates[STATES_PER_THREAD][4];

    // now, next: the states before and after the step. The thread reads and writes its own. sums_of(state): its sums.
    template <typename SumsOf, typename Now, typename Next>
    __device__ StepResult(PointwiseStorage<Config>& pointwise, const SumsOf& sums_of, const GateOperands<Config>& operands,
                          const ThreadCoords<Config>& thread, int tile, Now& now, Next& next) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            if (thread.sequence_in_tile(s) >= Config::TILE_BATCH) continue;
            float& carry = pointwise.carry[tile][s][thread.number];
            states[s] = cell_update(sums_of(s), operands, s, saved_gates[s]);
            h[s] = operands.is_active[s] ? narrow(states[s].h) : now.at(thread.unit(s), thread.sequence_in_tile(s));
            if (HIDDEN % UNITS && thread.unit(s) >= HIDDEN)
                h[s] = narrow(0.0f);  // no unit: of an infinite state it would be NaN
            next.at(thread.unit(s), thread.sequence_in_tile(s)) = h[s];
            if (operands.is_active[s]) carry = CELL == LSTM ? states[s].c : states[s].h;
            else states[s].c = carry;
        }
    }

    __device__ void write(const StatePointers<Config>& pointers, const GateOperands<Config>& operands, int tile) const {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            if (tile >= pointers.tiles_with_state[s]) continue;
            *pointers.output[s] = operands.is_active[s] ? h[s] : narrow(0.0f);
            if (!SAVE_GATES || GATES == 1 || !operands.is_active[s]) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) pointers.saved_gates[s][i * HIDDEN] = narrow(saved_gates[s][i]);
            if (CELL == LSTM) *pointers.saved_cells[s] = states[s].c;
        }
    }

    // After the last step. A state may be published with fewer bits than it has: of a sequence that is over the output has all.
    __device__ void write_final(const ForwardParams& params, const PointwiseStorage<Config>& pointwise,
                                const GateOperands<Config>& operands, const ThreadCoords<Config>& thread, int tile) const {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const index b = thread.sequence(tile, s), place = b * HIDDEN + thread.unit(s);
            if (tile >= thread.tiles_with_state(s)) continue;
            const int end = pointwise.ends[tile][thread.sequence_in_tile(s) % Config::TILE_BATCH];
            params.h_n[place] = operands.is_active[s] ? h[s]
                              : end > 0             ? params.output[params.place(end - 1, b, thread.unit(s))]
                              : params.h0             ? params.h0[place]
                                                    : narrow(0.0f);
            if (CELL == LSTM) params.c_n[place] = narrow(states[s].c);
        }
    }
};

// After a timeout all results are NaN.
template <typename Config>
__device__ inline void write_nan(const ForwardParams& params, const ThreadCoords<Config>& thread, int tiles) {
    for (int tile = 0; tile < tiles; tile++)
        for (int s = 0; s < Config::STATES_PER_THREAD; s++) {
            if (tile >= thread.tiles_with_state(s)) continue;
            const index b = thread.sequence(tile, s), place = b * HIDDEN + thread.unit(s);
            params.h_n[place] = narrow(CUDART_NAN_F);
            if (CELL == LSTM) params.c_n[place] = narrow(CUDART_NAN_F);
            for (int t = 0; t < params.steps; t++) params.output[params.place(t, b, thread.unit(s))] = narrow(CUDART_NAN_F);
        }
}
