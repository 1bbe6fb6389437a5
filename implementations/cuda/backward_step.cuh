// One step backward of a thread's states in a block of persistent_gpu, whatever way the blocks tell each other of it: what is read
// for it, the gates' gradients, and what is carried to the step before. Where a block's Thread has its states it says itself; a
// tile has TILE_BATCH sequences.
#pragma once
#include "later.cuh"
#include "recurrent_gates.cuh"

#ifndef TILE_BATCH
#define TILE_BATCH 8
#endif

typedef long long index;
typedef long long length;

struct Rows {
    const storage* data;
    index step, sequence;
    __device__ const storage& at(int t, index b, int j) const { return data[t * step + b * sequence + j]; }
};

struct Arrays {
    Rows output, d_output;
    const storage *kept, *weight, *first_h, *first_c, *d_final_h, *d_final_c;
    const float* cells;
    storage *d_gates, *d_product, *d_first_h, *d_first_c;
    index row_step, row_sequence;
    int steps, is_reverse;
    __device__ index row(int t, index b) const { return t * row_step + b * row_sequence; }
    __device__ int time(int i) const { return is_reverse ? i : steps - 1 - i; }  // of the i-th step backward
};

// What a block has in shared memory from step to step: of d_h and d_c what does not pass through W_hh; where sequences end.
struct Carried {
    float d_h[TILES][STATES_PER_THREAD][THREADS], d_c[TILES][STATES_PER_THREAD][THREADS];
    int ends[TILES][TILE_BATCH];

    __device__ void start(const Arrays& arrays, const ThreadCoords& me, const length* lengths) {
#pragma unroll 1
        for (int i = me.number; i < TILES * TILE_BATCH; i += THREADS) {
            const int b = me.first_sequence + i;
            ends[0][i] = b >= me.batch ? 0 : lengths ? (int)lengths[b] : arrays.steps;
        }
        for (int tile = 0; tile < TILES; tile++)
            for (int s = 0; s < STATES_PER_THREAD; s++) {
                const index place = (index)me.sequence(tile, s) * HIDDEN + me.unit(s);
                const bool is_inside = me.is_inside(tile, s);
                d_h[tile][s][me.number] = arrays.d_final_h && is_inside ? widen(arrays.d_final_h[place]) : 0;
                d_c[tile][s][me.number] = arrays.d_final_c && is_inside ? widen(arrays.d_final_c[place]) : 0;
            }
    }
};

// What a step needs of memory for a thread's states, read ahead of its use, as bits: who turns them into numbers waits.
// Where there is nothing to read something else is, so that no branch makes copies of what has not come yet.
struct Inputs {
    unsigned kept[STATES_PER_THREAD][4], d_output[STATES_PER_THREAD], h[STATES_PER_THREAD];
    float c[STATES_PER_THREAD], c_before[STATES_PER_THREAD];

    __device__ void read(const Arrays& arrays, const ThreadCoords& me, int tile, int i) {
        const int t = arrays.time(i), before = min(max(arrays.time(i + 1), 0), arrays.steps - 1);
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const index b = min(me.sequence(tile, s), me.batch - 1), row = arrays.row(t, b);
            const int j = min(me.unit(s), HIDDEN - 1);
            d_output[s] = raw_of(arrays.d_output.at(t, b, j));
            if (CELL != LSTM) h[s] = raw_of(arrays.output.at(CELL == GRU ? before : t, b, j));
            if (CELL == LSTM) c[s] = arrays.cells[row * HIDDEN + j];
            if (CELL == LSTM) c_before[s] = arrays.cells[arrays.row(before, b) * HIDDEN + j];
#pragma unroll
            for (int gate = 0; GATES > 1 && gate < 4; gate++)
                kept[s][gate] = raw_of(arrays.kept[(row * 4 + gate) * HIDDEN + j]);
        }
    }

    // Into the L2 cache what a later step reads. Of the state before what it does not have from this one.
    __device__ static void prefetch(const Arrays& arrays, const ThreadCoords& me, int tile, int i) {
        const int t = arrays.time(i), before = min(max(arrays.time(i + 1), 0), arrays.steps - 1);
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            if (!me.is_inside(tile, s)) continue;
            const index b = me.sequence(tile, s), row = arrays.row(t, b);
            const int j = me.unit(s);
            prefetch_l2(&arrays.d_output.at(t, b, j));
            if (CELL != LSTM) prefetch_l2(&arrays.output.at(CELL == GRU ? before : t, b, j));
            if (CELL == LSTM) prefetch_l2(arrays.cells + arrays.row(before, b) * HIDDEN + j);
#pragma unroll
            for (int gate = 0; GATES > 1 && gate < 4; gate++) prefetch_l2(arrays.kept + (row * 4 + gate) * HIDDEN + j);
        }
    }

    __device__ Slopes slopes(const Arrays& arrays, const ThreadCoords& me, int tile, int s, int before, int end) const {
        float found[4], state = of_raw(h[s]), c_state = c_before[s];
#pragma unroll
        for (int gate = 0; gate < 4; gate++) found[gate] = of_raw(kept[s][gate]);
        if (GATES > 1 && (before < 0 || before >= end)) {
            const storage* first = CELL == GRU ? arrays.first_h : arrays.first_c;
            const index place = (index)me.sequence(tile, s) * HIDDEN + me.unit(s);
            state = c_state = first && me.is_inside(tile, s) ? widen(first[place]) : 0;
        }
        return slopes_of(found, state, c[s], c_state);
    }
};

// d_h: all of it, of the state after the step. tell(gate, gradient): what the other units are to know of it.
template <typename Tell>
__device__ inline void step(Carried& carried, const Arrays& arrays, const Slopes& slopes, const ThreadCoords& me, int tile,
                            int s, int i, float d_h, Tell tell) {
    const int t = arrays.time(i), j = me.unit(s);
    const bool is_inside = me.is_inside(tile, s), is_alive = is_inside && t < carried.ends[tile][me.column(s)];
    const bool is_some = is_alive && (CELL != RNN_RELU || slopes.gates[0] > 0);
    const index row = arrays.row(t, me.sequence(tile, s));
    float &direct = carried.d_h[tile][s][me.number], &d_c = carried.d_c[tile][s][me.number];
    const float all_d_c = CELL == LSTM ? fmaf(d_h, slopes.c_of_h, d_c) : 0;
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) {
        const storage found = narrow(is_some ? (CELL == LSTM && gate < 3 ? all_d_c : d_h) * slopes.gates[gate] : 0);
        const bool is_apart = CELL == GRU && gate == 2;
        const storage of_h = is_apart ? narrow(is_some ? d_h * slopes.product : 0) : found;
        tell(gate, of_h);
        if (is_inside) arrays.d_gates[(row * GATES + gate) * HIDDEN + j] = found;
        if (is_inside && is_apart) arrays.d_product[row * HIDDEN + j] = of_h;
    }
    direct = !is_alive ? d_h : CELL == GRU ? d_h * slopes.h : 0;
    if (CELL == LSTM && is_alive) d_c = all_d_c * slopes.c;
}

// Gradients of the initial states.
__device__ inline void finish(const Carried& carried, const Arrays& arrays, const ThreadCoords& me, int tile, int s,
                              float d_h) {
    if (!me.is_inside(tile, s)) return;
    const index place = (index)me.sequence(tile, s) * HIDDEN + me.unit(s);
    arrays.d_first_h[place] = narrow(d_h);
    if (CELL == LSTM) arrays.d_first_c[place] = narrow(carried.d_c[tile][s][me.number]);
}

// Where a wait was given up nothing is known, which all results say.
__device__ inline void give_up(const Arrays& arrays, const ThreadCoords& me, int tile) {
    for (int s = 0; s < STATES_PER_THREAD; s++) {
        if (!me.is_inside(tile, s)) continue;
        const index b = me.sequence(tile, s), place = b * HIDDEN + me.unit(s);
        arrays.d_first_h[place] = narrow(NOT_A_NUMBER);
        if (CELL == LSTM) arrays.d_first_c[place] = narrow(NOT_A_NUMBER);
        for (int t = 0; t < arrays.steps; t++) {
            for (int gate = 0; gate < GATES; gate++)
                arrays.d_gates[(arrays.row(t, b) * GATES + gate) * HIDDEN + me.unit(s)] = narrow(NOT_A_NUMBER);
            if (CELL == GRU) arrays.d_product[arrays.row(t, b) * HIDDEN + me.unit(s)] = narrow(NOT_A_NUMBER);
        }
    }
}
