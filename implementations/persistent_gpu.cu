// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in one
//   launch: W_hh stays in registers and shared memory (Diamos et al., Persistent RNNs, ICML 2016).
// Layout: gates [T, B, G*H] storage, read: W_ih x without biases, element (t, b, f) at t * gates_step + b * gates_sequence + f.
//   weight [G*H, H] storage, read: W_hh. bias_ih, bias_hh [G*H] storage, read, null for none
//   first_h, first_c [B, H] storage, read, null for zeros. final_h, final_c [B, H] storage, written, final_c by LSTM only
//   output [T, B, H] storage, written: at t * output_step + b * output_sequence + h, 0 where a sequence is over
//   lengths [B] int64, read, null for none: a sequence that is over keeps its state
//   kept [rows, 4*H] storage, cells [rows, H] float, written with KEEPS for the backward pass: of (t, b) in row t * row_step +
//   b * row_sequence LSTM i f g o, GRU r z n and W_hn h + b_hn; c of LSTM
//   status [1] int32 in memory of the host, written when a wait was given up: 1; all results of that block are NaN then
//   No two may alias. Alignment: of the element; weight: 4 bytes.
// Launch: a cluster of BLOCKS blocks for each 8 * TILES sequences; block r owns UNITS hidden units from r * UNITS, a warp 4 of
//   them with all gates (RNN: 16), whose rows of W_hh are its rows of a warpgroup's product. Sequences are the columns.
//   Of SLICES slices of 16 columns of W_hh the first HELD lie in registers, the others in shared memory.
//   Shared bytes: 128 + 512 TILES SLICES (states) + 32 TILES UNITS (on their way) + 512 WARPS (SLICES - HELD).
// Cost: reads G H^2 + T B G H values, writes T B H; 2 T B G H^2 operations. Between blocks B H values a step and block.
// Limits: compute capability 9.0; storage of 16 bits; UNITS a multiple of 16 (RNN: 64); T, B, G * H below 2^31; offsets 64-bit.
// Order: h_(t+1) goes to every block's buffer (t+1)%2 by st.async and is waited for by its bytes (cluster.cuh), so it is seen
//   whole. A buffer is written again only by who has all of h_(t+1), whose every sender passed its block's barrier of step t,
//   where all its warps had read h_t. What is on its way alternates likewise: who writes it at t+2 has passed the barrier of
//   step t+1, as had those who sent it at t. A wait that takes WATCHDOG_NS is given up by all threads of its block at the next
//   barrier, and in turn by all blocks. Sums are taken in one order: bit-equal repeats.
#include "cluster.cuh"
#include "recurrent_gates.cuh"
#include "warpgroup.cuh"

#define ROWS (GATES == 1 ? 1 : 4)  // of a unit among its warp's 16; of GRU's the fourth is empty
#define STATES (GATES == 1 ? 4 : 1)  // of a thread in each tile
#define WARPS (UNITS * ROWS / 16)
#define THREADS (32 * WARPS)
#define COLUMNS (UNITS * BLOCKS)  // of W_hh, with those that fill the last block
#define SLICES (COLUMNS / 16)
#define PIECES (TILES * UNITS)  // of 16 bytes, that a block sends to each
#define A_LANE ((PIECES + 31) / 32)

typedef long long index;
typedef long long length;

struct Shared {
    unsigned long long barriers[16];  // two, and the room up to the next 128 bytes
    storage states[2][COLUMNS / 8][TILES * 8][8];
    storage leaving[2][UNITS / 8][TILES * 8][8];
    storage weights[SLICES > HELD ? SLICES - HELD : 1][WARPS / 4][2][64][8];  // the last, as there may be none
};

struct Arrays {
    const storage *gates, *weight, *bias_ih, *bias_hh, *first_h, *first_c;
    storage *output, *final_h, *final_c, *kept;
    float* cells;
    index gates_step, gates_sequence, output_step, output_sequence, row_step, row_sequence;
};

struct Thread {
    int warp, lane, g, t, first_unit, first_sequence, batch;
    __device__ int local_unit(int state) const { return ROWS == 4 ? warp * 4 + g / 2 : warp * 16 + g + 8 * (state / 2); }
    __device__ int unit(int state) const { return first_unit + local_unit(state); }
    __device__ int column(int state) const { return 2 * t + (ROWS == 4 ? g % 2 : state % 2); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * 8 + column(state); }
    __device__ bool is_inside(int tile, int state) const { return unit(state) < HIDDEN && sequence(tile, state) < batch; }
};

__device__ inline index output_place(const Arrays& arrays, const Thread& me, int tile, int state, int at) {
    return at * arrays.output_step + me.sequence(tile, state) * arrays.output_sequence + me.unit(state);
}

// A row of this warp's 16 in W_hh, null where there is none. Four rows a unit: i and f by turns, or r and z, then the others.
__device__ inline const storage* row_of(const storage* weight, const Thread& me, int row) {
    const int unit = me.first_unit + (ROWS == 4 ? me.warp * 4 + row % 8 / 2 : me.warp * 16 + row);
    const int gate = ROWS == 4 ? row / 8 * 2 + row % 2 : 0;
    return gate < GATES && unit < HIDDEN ? weight + ((index)gate * HIDDEN + unit) * HIDDEN : nullptr;
}

// Columns k and k + 1 of a row, 0 where there are none; k is even.
__device__ inline unsigned pair_at(const storage* row, int k) {
    if (!row || k >= HIDDEN) return 0;
    if (HIDDEN % 2 == 0) return *(const unsigned*)(row + k);
    const unsigned low = *(const unsigned short*)(row + k);
    return k + 1 < HIDDEN ? low | *(const unsigned short*)(row + k + 1) << 16 : low;
}

__device__ inline Slice slice_of(const storage* upper, const storage* lower, int k) {
    return {pair_at(upper, k), pair_at(lower, k), pair_at(upper, k + 8), pair_at(lower, k + 8)};
}

__device__ inline void share_weights(Shared& shared, const storage* weight, const Thread& me) {
    for (int i = me.lane; i < 16 * 8 * (SLICES - HELD); i += 32) {
        const int row = i / 8 % 16, k = i % 8 * 2;
        storage* eight = shared.weights[i / 128][me.warp / 4][k / 8][me.warp % 4 * 16 + row];
        ((unsigned*)eight)[k % 8 / 2] = pair_at(row_of(weight, me, row), (HELD + i / 128) * 16 + k);
    }
}

__device__ inline void start(Shared& shared, const Arrays& arrays, const Thread& me) {
    for (int i = threadIdx.x; i < (int)(sizeof(shared.states) / 4); i += THREADS) ((unsigned*)shared.states)[i] = 0;
    __syncthreads();
    if (!arrays.first_h) return;
    for (int i = threadIdx.x; i < TILES * 8 * HIDDEN; i += THREADS) {
        const int n = i / HIDDEN, k = i % HIDDEN, b = me.first_sequence + n;
        if (b < me.batch) shared.states[0][k / 8][n][k % 8] = arrays.first_h[(index)b * HIDDEN + k];
    }
}

__device__ inline void multiply_all(Sums* sums, const Shared& shared, const Slice* held, const Thread& me, int now) {
    const Place states = place_of(shared.states[now], sizeof(shared.states[0][0]), 128);
    const Place weights = place_of(shared.weights[0][me.warp / 4], 1024, 128);
    begin_products();
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        const auto columns = states.after(s * (int)sizeof(shared.states[0][0]) * 2);
        if (s < HELD) multiply(sums, held[s < HELD ? s : 0], columns, s > 0);
        else multiply(sums, weights.after((s - HELD) * (int)sizeof(shared.weights[0])), columns, s > 0);
    }
    end_products();
}

// The products of a thread's own state, by gate. With four rows a unit two threads have two gates each, of two sequences.
__device__ inline void own_products(float* products, const Sums& sums, const Thread& me, int state) {
    if (ROWS == 1) {
        products[0] = sums.at[state];
        return;
    }
    const bool is_odd = me.g % 2;
    const float upper = __shfl_xor_sync(~0u, is_odd ? sums.at[0] : sums.at[1], 4);
    const float lower = __shfl_xor_sync(~0u, is_odd ? sums.at[2] : sums.at[3], 4);
    const float all[4] = {is_odd ? upper : sums.at[0], is_odd ? sums.at[1] : upper, is_odd ? lower : sums.at[2],
                          is_odd ? sums.at[3] : lower};
    for (int gate = 0; gate < GATES; gate++) products[gate] = all[gate];
}

__device__ inline void keep(const Arrays& arrays, const Thread& me, int tile, int state, int at, const float* kept, float c) {
    const index row = at * arrays.row_step + me.sequence(tile, state) * arrays.row_sequence;
    storage* place = arrays.kept + row * 4 * HIDDEN + me.unit(state);
#pragma unroll
    for (int i = 0; i < 4; i++) place[i * HIDDEN] = narrow(kept[i]);
    if (CELL == LSTM) arrays.cells[row * HIDDEN + me.unit(state)] = c;
}

// What a thread carries from step to step: its states, and the gates' inputs of this step and the next.
struct Carried {
    State states[TILES][STATES];
    storage inputs[TILES][STATES][GATES], ahead[TILES][STATES][GATES];
    float bias[STATES][GATES], bias_n[STATES];
    int ends[TILES][STATES];

    __device__ Carried(const Arrays& arrays, const Thread& me, const length* lengths, int at) {
#pragma unroll
        for (int s = 0; s < STATES; s++) {
            for (int gate = 0; gate < GATES; gate++) {
                const int j = gate * HIDDEN + me.unit(s);
                const float of_h = arrays.bias_hh && me.unit(s) < HIDDEN ? widen(arrays.bias_hh[j]) : 0;
                bias[s][gate] = arrays.bias_ih && me.unit(s) < HIDDEN ? widen(arrays.bias_ih[j]) : 0;
                if (CELL == GRU && gate == 2) bias_n[s] = of_h;
                else bias[s][gate] += of_h;
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                const index b = me.sequence(tile, s), place = b * HIDDEN + me.unit(s);
                const bool is_inside = me.is_inside(tile, s);
                states[tile][s].h = arrays.first_h && is_inside ? widen(arrays.first_h[place]) : 0;
                states[tile][s].c = arrays.first_c && is_inside ? widen(arrays.first_c[place]) : 0;
                ends[tile][s] = !is_inside ? 0 : lengths ? (int)lengths[b] : 0x7fffffff;
            }
        }
        read_ahead(arrays, me, at);
        advance();
    }

    __device__ void read_ahead(const Arrays& arrays, const Thread& me, int at) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int s = 0; s < STATES; s++) {
                if (at >= ends[tile][s]) continue;
                const storage* place = arrays.gates + at * arrays.gates_step;
                place += me.sequence(tile, s) * arrays.gates_sequence + me.unit(s);
#pragma unroll
                for (int gate = 0; gate < GATES; gate++) ahead[tile][s][gate] = place[gate * HIDDEN];
            }
    }

    __device__ void advance() {
#pragma unroll
        for (int i = 0; i < TILES * STATES * GATES; i++) (&inputs[0][0][0])[i] = (&ahead[0][0][0])[i];
    }

    __device__ void step(const Sums* sums, Shared& shared, const Arrays& arrays, const Thread& me, int at, int next) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int s = 0; s < STATES; s++) {
                float x[GATES], product[GATES];
                own_products(product, sums[tile], me, s);
#pragma unroll
                for (int gate = 0; gate < GATES; gate++) x[gate] = widen(inputs[tile][s][gate]) + bias[s][gate];
                float kept[4];
                const State found = after(states[tile][s], x, product, bias_n[s], kept);
                const bool is_alive = at < ends[tile][s];
                if (is_alive) states[tile][s] = found;
                if (KEEPS && GATES > 1 && is_alive) keep(arrays, me, tile, s, at, kept, found.c);
                const storage h = narrow(states[tile][s].h);
                shared.leaving[next][me.local_unit(s) / 8][tile * 8 + me.column(s)][me.local_unit(s) % 8] = h;
                if (me.is_inside(tile, s)) arrays.output[output_place(arrays, me, tile, s, at)] = is_alive ? h : narrow(0.0f);
            }
        advance();
    }

    // is_stuck: nothing is known, which all results say.
    __device__ void finish(const Arrays& arrays, const Thread& me, int steps, bool is_stuck) const {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int s = 0; s < STATES; s++) {
                if (!me.is_inside(tile, s)) continue;
                const index place = (index)me.sequence(tile, s) * HIDDEN + me.unit(s);
                arrays.final_h[place] = narrow(is_stuck ? NOT_A_NUMBER : states[tile][s].h);
                if (CELL == LSTM) arrays.final_c[place] = narrow(is_stuck ? NOT_A_NUMBER : states[tile][s].c);
                for (int t = 0; is_stuck && t < steps; t++)
                    arrays.output[output_place(arrays, me, tile, s, t)] = narrow(NOT_A_NUMBER);
            }
    }
};

// Pieces of what leaves this block, each warp's to blocks of its own.
__device__ inline void send_all(Shared& shared, const Thread& me, int next, word barrier) {
    uint4 pieces[A_LANE];
#pragma unroll
    for (int i = 0; i < A_LANE; i++)
        if (i * 32 + me.lane < PIECES) pieces[i] = ((const uint4*)shared.leaving[next])[i * 32 + me.lane];
    const word place = address_of(shared.states[next][me.first_unit / 8]) + me.lane * 16, rank = me.first_unit / UNITS;
    for (word number = me.warp; number < BLOCKS; number += WARPS) {
        const word to = number + rank < BLOCKS ? number + rank : number + rank - BLOCKS;
#pragma unroll
        for (int i = 0; i < A_LANE; i++)
            if (i * 32 + me.lane < PIECES)
                send(in_block(place + i * 512, to), pieces[i], in_block(barrier, to));
    }
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1) persistent_forward(
    const storage* gates, index gates_step, index gates_sequence, const storage* weight, const storage* bias_ih,
    const storage* bias_hh, const storage* first_h, const storage* first_c, storage* output, index output_step,
    index output_sequence, storage* final_h, storage* final_c, const length* lengths, storage* kept, float* cells,
    index row_step, index row_sequence, int* status, int steps, int batch, int is_reverse) {
    Shared& shared = *(Shared*)block_memory();
    const int thread = threadIdx.x, lane = thread % 32;
    const Thread me = {thread / 32, lane, lane / 4, lane % 4, (int)rank_in_cluster() * UNITS,
                       (int)(blockIdx.x / BLOCKS) * TILES * 8, batch};
    const Arrays arrays = {gates, weight, bias_ih, bias_hh, first_h, first_c, output, final_h, final_c, kept, cells,
                           gates_step, gates_sequence, output_step, output_sequence, row_step, row_sequence};
    if (thread == 0) {
        for (int i = 0; i < 2; i++) make_barrier(address_of(&shared.barriers[i]));
        show_barriers();
    }
    start(shared, arrays, me);
    Slice held[HELD];
#pragma unroll
    for (int s = 0; s < HELD; s++)
        held[s] = slice_of(row_of(weight, me, me.g), row_of(weight, me, me.g + 8), s * 16 + me.t * 2);
    share_weights(shared, weight, me);
    Carried carried(arrays, me, lengths, is_reverse ? steps - 1 : 0);
    show_to_products();
    __syncthreads();
    sync_cluster();
    bool is_stuck = false;
    for (int t = 0; t < steps && !is_stuck; t++) {
        const int now = t % 2, next = 1 - now, at = is_reverse ? steps - 1 - t : t;
        if (thread == 0 && t + 1 < steps) expect(address_of(&shared.barriers[next]), BLOCKS * PIECES * 16);
        if (t + 1 < steps) carried.read_ahead(arrays, me, is_reverse ? at - 1 : at + 1);
        if (t > 0) is_stuck = !wait_for(address_of(&shared.barriers[now]), (t - 1) / 2 % 2);
        show_to_products();
        Sums sums[TILES];
        multiply_all(sums, shared, held, me, now);
        carried.step(sums, shared, arrays, me, at, next);
        is_stuck = __syncthreads_or(is_stuck);
        if (t + 1 < steps && !is_stuck) send_all(shared, me, next, address_of(&shared.barriers[next]));
    }
    if (is_stuck) *(volatile int*)status = 1;
    carried.finish(arrays, me, steps, is_stuck);
    sync_cluster();
}
