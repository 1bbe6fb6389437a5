// The gates of a step of a tile of sequences, for the units that a block of persistent_gpu owns, however their sums are found and
// whatever way blocks tell each other: what is read for them, found, carried from step to step and written. GATE_THREADS threads
// have STATES_PER_THREAD states each of a tile of TILE_BATCH sequences, unit_of_state and sequence_of_state of a thread, TILE_BATCH or more where there is none. Sums
// lie in shared memory for SUM_ROWS units and SUM_COLUMNS sequences, SUMS times by turns, in GROUPS, which are added; what else
// the block has there for the product is a Room.
#pragma once
#include "again.cuh"
#include "later.cuh"
#include "recurrent_gates.cuh"

#define STEPS_AHEAD 3
#define PER (GATES == 1 ? 1 : 4)  // sums of a unit and sequence, with what fills them up

typedef long long index;
typedef long long length;

struct alignas(16) Four {
    float data[4];
};

// What a block has in shared memory for all its tiles, beside their states. sums: SUMS times, by turns.
struct Steps {
    float sums[SUMS][GROUPS][SUM_ROWS][SUM_COLUMNS * PER + 4];  // a unit's, so far apart that banks differ
    Four bias[UNITS];
    float carried[TILES][STATES_PER_THREAD][GATE_THREADS];
    int ends[TILES][TILE_BATCH];
    WeightStorage weight_storage;
};

struct Arrays {
    const storage *gates, *weight, *bias_ih, *bias_hh, *first_h, *first_c;
    storage *output, *final_h, *final_c, *kept;
    float* cells;
    index gates_step, gates_sequence, output_step, output_sequence, row_step, row_sequence;
    int steps, is_reverse;
    __device__ int direction() const { return is_reverse ? -1 : 1; }
    __device__ int step(int t) const { return is_reverse ? steps - 1 - t : t; }
    __device__ index place(int at, index b, int unit) const { return at * output_step + b * output_sequence + unit; }
};

// own_tiles: in how many of the tiles a thread has the state, from the first on.
struct ThreadCoords {
    int number, warp, lane, first_unit, first_sequence, batch;
    __device__ int local_unit(int state) const { return unit_of_state(number, state); }
    __device__ int column(int state) const { return sequence_of_state(number, state); }
    __device__ int unit(int state) const { return first_unit + local_unit(state); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * TILE_BATCH + column(state); }
    __device__ int own_tiles(int state) const {
        return column(state) < TILE_BATCH && unit(state) < HIDDEN ? (batch - sequence(0, state) + TILE_BATCH - 1) / TILE_BATCH
                                                                  : 0;
    }
};

// Sums' biases, where sequences end, and what threads carry; after it the block is to meet.
__device__ inline void start(Steps& steps, const Arrays& arrays, const ThreadCoords& me, const length* lengths) {
    for (int i = me.number; i < TILES * TILE_BATCH; i += GATE_THREADS) {
        const int b = me.first_sequence + i;
        steps.ends[0][i] = b >= me.batch ? 0 : lengths ? (int)lengths[b] : arrays.steps;
    }
    for (int i = me.number; i < GATES * UNITS; i += GATE_THREADS) {
        const int gate = i / UNITS, unit = i % UNITS, j = gate * HIDDEN + me.first_unit + unit;
        const bool is_inside = me.first_unit + unit < HIDDEN;
        const float of_x = arrays.bias_ih && is_inside ? widen(arrays.bias_ih[j]) : 0;
        const float of_h = arrays.bias_hh && is_inside ? widen(arrays.bias_hh[j]) : 0;
        const bool is_apart = CELL == GRU && gate == 2;
        steps.bias[unit].data[gate] = is_apart ? of_x : of_x + of_h;
        if (is_apart) steps.bias[unit].data[3] = of_h;
    }
    const storage* carried = CELL == LSTM ? arrays.first_c : arrays.first_h;
    for (int tile = 0; tile < TILES; tile++)
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const index place = (index)me.sequence(tile, s) * HIDDEN + me.unit(s);
            steps.carried[tile][s][me.number] = carried && tile < me.own_tiles(s) ? widen(carried[place]) : 0;
        }
}

// The initial states of a tile, in memory that was set to 0.
template <typename States>
__device__ inline void start(States& states, const Arrays& arrays, const ThreadCoords& me, int tile) {
    for (int i = me.number; arrays.first_h && i < 8 * HIDDEN; i += GATE_THREADS) {
        const int b = me.first_sequence + tile * 8 + i / HIDDEN;
        if (b < me.batch) states.at(i % HIDDEN, i / HIDDEN) = arrays.first_h[(index)b * HIDDEN + i % HIDDEN];
    }
}

// Those of a thread's own units, which some memory of the block has room for.
template <typename Own> __device__ inline void start_own(Own& own, const Arrays& arrays, const ThreadCoords& me, int tile) {
    for (int s = 0; s < STATES_PER_THREAD; s++)
        if (tile < me.own_tiles(s))
            own.at(me.unit(s), me.column(s)) = arrays.first_h[(index)me.sequence(tile, s) * HIDDEN + me.unit(s)];
}

// Where a thread's states are in memory, tile by tile and step by step. next: by how many rows of a stride to the next tile;
// back: after the last tile to the first one's next step.
struct Walk {
    const storage* gates[STATES_PER_THREAD];
    storage *output[STATES_PER_THREAD], *kept[STATES_PER_THREAD];
    float* cells[STATES_PER_THREAD];
    int own_tiles[STATES_PER_THREAD];
    bool fetches[STATES_PER_THREAD];  // one thread for every 16 bytes: each that fetches takes time of its own
    struct Way {
        index next, back;
    } of_gates, of_output, of_rows;
    index ahead;  // of gates, in STEPS_AHEAD

    __device__ Walk(const Arrays& arrays, const ThreadCoords& me, int tiles) {
        const int at = arrays.step(0);
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const index b = me.sequence(0, s), row = at * arrays.row_step + b * arrays.row_sequence;
            gates[s] = arrays.gates + at * arrays.gates_step + b * arrays.gates_sequence + me.unit(s);
            output[s] = arrays.output + arrays.place(at, b, me.unit(s));
            kept[s] = arrays.kept + row * 4 * HIDDEN + me.unit(s), cells[s] = arrays.cells + row * HIDDEN + me.unit(s);
            own_tiles[s] = me.own_tiles(s), fetches[s] = me.local_unit(s) % ELEMENTS_PER_VECTOR == 0;
        }
        const auto way = [&](index step, index sequence) -> Way {
            return {sequence * TILE_BATCH, arrays.direction() * step + sequence * (1 - tiles) * TILE_BATCH};
        };
        of_gates = way(arrays.gates_step, arrays.gates_sequence), of_output = way(arrays.output_step, arrays.output_sequence);
        of_rows = way(arrays.row_step, arrays.row_sequence), ahead = arrays.direction() * STEPS_AHEAD * arrays.gates_step;
    }

    // Has registers for what the compiler would otherwise find anew in each step, one multiplication waiting for the other.
    __device__ void hold() {
        opaque(of_gates.next), opaque(of_gates.back), opaque(of_output.next), opaque(of_output.back), opaque(ahead);
    }

    // What is read, and what is written.
    __device__ void advance_gates(bool is_last) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) gates[s] += is_last ? of_gates.back : of_gates.next;
    }
    __device__ void advance(bool is_last) {
        const index rows = is_last ? of_rows.back : of_rows.next;
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            output[s] += is_last ? of_output.back : of_output.next;
            if (KEEPS) kept[s] += rows * 4 * HIDDEN, cells[s] += rows * HIDDEN;
        }
    }
};

// The gates' inputs of a thread's states, read a tile ahead of their use, as bits: who turns them into numbers waits for them.
// STEPS_AHEAD of that they are fetched from memory, which may take longer than a step.
struct Inputs {
    unsigned data[STATES_PER_THREAD][GATES];
    __device__ float at(int s, int gate) const {
        unsigned bits = data[s][gate];
        opaque(bits);  // not before the product is under way
        return of_raw(bits);
    }
    __device__ void read(const Arrays& arrays, const Walk& walk, int tile, int t) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            if (tile >= walk.own_tiles[s]) continue;
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) data[s][gate] = raw_of(walk.gates[s][gate * HIDDEN]);
            if (!walk.fetches[s] || t + STEPS_AHEAD >= arrays.steps) continue;
            const storage* ahead = walk.gates[s] + walk.ahead;
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) prefetch_l2(ahead + gate * HIDDEN);
        }
    }
};

// Those of the tile after this one, or of the first one's next step, where there are any. inputs: `Inputs`, or what has its
// functions.
template <typename In>
__device__ inline void read_next(In& inputs, Walk& walk, const Arrays& arrays, int tiles, int tile, int t) {
    const bool is_last = tile + 1 == tiles;
    walk.advance_gates(is_last);
    if (!is_last || t + 1 < arrays.steps) inputs.read(arrays, walk, is_last ? 0 : tile + 1, t + is_last);
}

// What a thread's states need beside their sums, at hand before those are there.
struct Ready {
    float x[STATES_PER_THREAD][GATES], bias_n[STATES_PER_THREAD], carried[STATES_PER_THREAD];
    bool is_alive[STATES_PER_THREAD];
    template <typename In> __device__ Ready(const Steps& steps, const In& inputs, const ThreadCoords& me, int tile, int at) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const Four bias = steps.bias[me.local_unit(s)];
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) x[s][gate] = inputs.at(s, gate) + bias.data[gate];
            bias_n[s] = bias.data[3], carried[s] = steps.carried[tile][s][me.number];
            is_alive[s] = !LENGTHS || at < steps.ends[tile][me.column(s) % TILE_BATCH];
        }
    }
};

// A thread's sums of a state, all groups'.
__device__ inline Four sums_of(const Steps& steps, int buffer, const ThreadCoords& me, int s) {
    Four all[2];  // of every other group, so that fewer additions wait for each other
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        const float* sums = &steps.sums[buffer][group][me.local_unit(s)][me.column(s) * PER];
        const Four four = GATES == 1 ? Four{{*sums}} : *(const Four*)sums;
#pragma unroll
        for (int i = 0; i < 4; i++) all[group % 2].data[i] = group < 2 ? four.data[i] : all[group % 2].data[i] + four.data[i];
    }
#pragma unroll
    for (int i = 0; i < 4 && GROUPS > 1; i++) all[0].data[i] += all[1].data[i];
    return all[0];
}

__device__ inline State next_of(const Four& sums, const Ready& ready, int s, float* kept) {
    float x[GATES], product[GATES];
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) x[gate] = ready.x[s][gate], product[gate] = sums.data[gate];
    if (CELL == GRU && INPUT_K_TILES) x[2 % GATES] += sums.data[3];  // W_in x
    return after({ready.carried[s], ready.carried[s]}, x, product, ready.bias_n[s], kept);
}

// What a step has found of a thread's states, h as it is told: to be written when the others have been.
struct Found {
    State states[STATES_PER_THREAD];
    storage h[STATES_PER_THREAD];
    float kept[STATES_PER_THREAD][4];

    // now, next: the states before and after the step, of which the thread reads and writes its own. sums(state): its sums.
    template <typename Now, typename Next>
    __device__ Found(Steps& steps, int buffer, const Ready& ready, const ThreadCoords& me, int tile, Now& now, Next& next)
        : Found(steps, [&](int s) { return sums_of(steps, buffer, me, s); }, ready, me, tile, now, next) {}
    template <typename Accumulator, typename Now, typename Next>
    __device__ Found(Steps& steps, const Accumulator& sums, const Ready& ready, const ThreadCoords& me, int tile, Now& now,
                     Next& next) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            if (me.column(s) >= TILE_BATCH) continue;
            float& carried = steps.carried[tile][s][me.number];
            states[s] = next_of(sums(s), ready, s, kept[s]);
            h[s] = ready.is_alive[s] ? narrow(states[s].h) : now.at(me.unit(s), me.column(s));
            if (HIDDEN % UNITS && me.unit(s) >= HIDDEN) h[s] = narrow(0.0f);  // no unit: of an infinite state it had no number
            next.at(me.unit(s), me.column(s)) = h[s];
            if (ready.is_alive[s]) carried = CELL == LSTM ? states[s].c : states[s].h;
            else states[s].c = carried;
        }
    }

    __device__ void write(const Walk& walk, const Ready& ready, int tile) const {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            if (tile >= walk.own_tiles[s]) continue;
            *walk.output[s] = ready.is_alive[s] ? h[s] : narrow(0.0f);
            if (!KEEPS || GATES == 1 || !ready.is_alive[s]) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) walk.kept[s][i * HIDDEN] = narrow(kept[s][i]);
            if (CELL == LSTM) *walk.cells[s] = states[s].c;
        }
    }

    // After the last step. What is told of a state may be less than it was: of one that is over the output has all.
    __device__ void write_final(const Arrays& arrays, const Steps& steps, const Ready& ready, const ThreadCoords& me,
                                int tile) const {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const index b = me.sequence(tile, s), place = b * HIDDEN + me.unit(s);
            if (tile >= me.own_tiles(s)) continue;
            const int end = steps.ends[tile][me.column(s) % TILE_BATCH];
            arrays.final_h[place] = ready.is_alive[s] ? h[s] : end > 0 ? arrays.output[arrays.place(end - 1, b, me.unit(s))]
                                  : arrays.first_h ? arrays.first_h[place] : narrow(0.0f);
            if (CELL == LSTM) arrays.final_c[place] = narrow(states[s].c);
        }
    }
};

// Nothing is known, which all results say.
__device__ inline void give_up(const Arrays& arrays, const ThreadCoords& me, int tiles) {
    for (int tile = 0; tile < tiles; tile++)
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            if (tile >= me.own_tiles(s)) continue;
            const index b = me.sequence(tile, s), place = b * HIDDEN + me.unit(s);
            arrays.final_h[place] = narrow(NOT_A_NUMBER);
            if (CELL == LSTM) arrays.final_c[place] = narrow(NOT_A_NUMBER);
            for (int t = 0; t < arrays.steps; t++) arrays.output[arrays.place(t, b, me.unit(s))] = narrow(NOT_A_NUMBER);
        }
}
