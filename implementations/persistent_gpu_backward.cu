// Maths: the backward pass of persistent_gpu.cu, CELL, all T steps of one layer and direction in one launch: from the last step
//   to the first, dh = d_output + W_hh^T d_gates of the step after, d_gates from dh and what the forward pass kept.
// Layout: kept [rows, 4*H] storage, cells [rows, H] float, read: as persistent_gpu.cu wrote them
//   output, d_output [T, B, H] storage, read: element (t, b, h) at t * NAME_step + b * NAME_sequence + h
//   weight [G*H, H] storage, read: W_hh. first_h, first_c, d_final_h, d_final_c [B, H] storage, read, null for zeros
//   lengths [B] int64, read, null for none: a step at which a sequence is over passes gradients on
//   d_gates [rows, G*H] storage, written: with respect to W_ih x. d_product [rows, H] storage, written by GRU: to W_hn h
//   d_first_h, d_first_c [B, H] storage, written, the latter by LSTM only. status as in persistent_gpu.cu
//   No two may alias. Alignment: of the element; weight: 4 bytes.
// Launch: clusters, units and sequences as in persistent_gpu.cu. A warp multiplies 16 of all units by its block's gates.
//   Of PARTS pieces of 16 units by 32 gates of a warp the first HELD lie in registers, the others in shared memory.
//   Shared bytes: 128 + 64 TILES BLOCKS UNITS (sums) + 1,024 TILES SLICES (gates) + 1,024 WARPS (PARTS - HELD) (weights).
// Cost: reads G H^2 + T B S H values, S being 9 (LSTM, c in float counting twice), 6 (GRU), 2 (RNN), writes T B G H (GRU: 4 H);
//   2 T B G H^2 operations. Between blocks 4 B H bytes a step and block.
// Limits: as persistent_gpu.cu.
// Order: sums of step i go to buffer i % 2 of the unit's block and are waited for by their bytes. Who sends those of i + 2 has
//   all of i + 1, whose every sender passed its block's barrier of step i + 1, where all its threads had added those of step i.
//   Gates alternate likewise: who writes those of i + 2 passed the barrier of i + 1, after every warp had multiplied those of i.
//   A wait that takes WATCHDOG_NS ends as in persistent_gpu.cu. Sums are added in the order of blocks: bit-equal repeats.
#include "cluster.cuh"
#include "recurrent_gates.cuh"
#include "warp_product.cuh"

#define WARPS (UNITS * (GATES == 1 ? 1 : 4) / 16)
#define THREADS (32 * WARPS)
#define SEQUENCES (8 * TILES)
#define A_TILE (UNITS * 8 / THREADS)  // states of a thread in each tile
#define OWN (A_TILE * TILES)
#define SLICES ((GATES * UNITS + 31) / 32)  // of 32 of the block's gates
#define ROW_TILES ((UNITS * BLOCKS / 16 + WARPS - 1) / WARPS)  // of 16 units, that a warp multiplies
#define AT_ONCE (ROW_TILES % 2 ? 1 : 2)  // of them, for which gates are read
#define PARTS (ROW_TILES * SLICES)

typedef long long index;
typedef long long length;

struct Shared {
    unsigned long long barriers[16];  // two, and the room up to the next 128 bytes
    float sums[2][BLOCKS][TILES][UNITS][8];
    storage gates[2][TILES][SLICES][8][32];
    uint4 weights[PARTS > HELD ? PARTS - HELD : 1][2][THREADS];  // the last, as there may be none
};

struct Rows {
    const storage* at;
    index step, sequence;
};

struct Arrays {
    Rows output, d_output;
    const storage *kept, *weight, *first_h, *first_c, *d_final_h, *d_final_c;
    const float* cells;
    storage *d_gates, *d_product, *d_first_h, *d_first_c;
    index row_step, row_sequence;
    int steps, batch, is_reverse;
    __device__ index row(int t, index b) const { return t * row_step + b * row_sequence; }
};

// share: which of the warps' shares of all units it multiplies; each block begins with another, so that not all tell the same.
struct Thread {
    int number, share, lane, first_unit, first_sequence;
    __device__ int local_unit(int i) const { return (number + i % A_TILE * THREADS) / 8; }
    __device__ int column(int i) const { return i / A_TILE * 8 + number % 8; }
    __device__ int unit(int i) const { return first_unit + local_unit(i); }
    __device__ int sequence(int i) const { return first_sequence + column(i); }
};

__device__ inline float read(const Rows& rows, int t, index b, int f) {
    return widen(rows.at[t * rows.step + b * rows.sequence + f]);
}

// The block's k-th gate's row of W_hh, at units u and u + 1; 0 where there are none. u is even.
__device__ inline unsigned pair_at(const storage* weight, const Thread& me, int k, int u) {
    const int gate = k / UNITS, own = me.first_unit + k % UNITS;
    if (gate >= GATES || own >= HIDDEN || u >= HIDDEN) return 0;
    const storage* place = weight + (gate * HIDDEN + own) * HIDDEN + u;
    if (HIDDEN % 2 == 0) return *(const unsigned*)place;
    const unsigned low = *(const unsigned short*)place;
    return u + 1 < HIDDEN ? low | *(const unsigned short*)(place + 1) << 16 : low;
}

// Of W_hh's transpose 8 units from u on by a slice's gates: read by rows of W_hh, 8 of which a warp transposes at once.
__device__ inline uint4 eight_of(const storage* weight, const Thread& me, int u, int slice) {
    const int g = me.lane / 4, k = slice * 32 + g / 2 * 8 + g % 2;
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = pair_at(weight, me, k + 2 * i, u + me.lane % 4 * 2);
    __syncwarp();  // all lanes, whatever they have read, transpose together
    return {transposed(pairs[0]), transposed(pairs[1]), transposed(pairs[2]), transposed(pairs[3])};
}

__device__ inline Slice part_of(const storage* weight, const Thread& me, int part) {
    const int u = (me.share * ROW_TILES + part % ROW_TILES) * 16, slice = part / ROW_TILES;
    return {eight_of(weight, me, u, slice), eight_of(weight, me, u + 8, slice)};
}

// Gradients of one state's gates, of a step before `end`; `direct` and `d_c` become what passes to the step before.
__device__ inline void through(const Arrays& arrays, index b, int j, int t, int end, float d_h, float& direct, float& d_c,
                               float* d_gates, float* d_product) {
    if (GATES == 1) {
        const float h = read(arrays.output, t, b, j);
        d_gates[0] = CELL == RNN_RELU ? (h <= 0 ? 0 : d_h) : d_h * (1 - h * h);
        direct = 0;
        return;
    }
    const storage* kept = arrays.kept + arrays.row(t, b) * 4 * HIDDEN + j;
    const float first = widen(kept[0]), second = widen(kept[HIDDEN]);
    const float third = widen(kept[2 * HIDDEN]), fourth = widen(kept[3 * HIDDEN]);
    const int before = arrays.is_reverse ? t + 1 : t - 1;
    const bool is_first = before < 0 || before >= end;
    if (CELL == GRU) {
        const storage* initial = arrays.first_h;
        const float h = is_first ? (initial ? widen(initial[b * HIDDEN + j]) : 0) : read(arrays.output, before, b, j);
        const float d_n = d_h * (1 - second) * (1 - third * third);
        d_gates[0] = d_n * fourth * first * (1 - first);
        d_gates[1] = d_h * (h - third) * second * (1 - second);
        d_gates[2 % GATES] = d_n, *d_product = d_n * first, direct = d_h * second;
        return;
    }
    const storage* initial = arrays.first_c;
    const float c_first = initial ? widen(initial[b * HIDDEN + j]) : 0;
    const float c = is_first ? c_first : arrays.cells[arrays.row(before, b) * HIDDEN + j];
    const float tangent_c = tangent(arrays.cells[arrays.row(t, b) * HIDDEN + j]);
    d_c += d_h * fourth * (1 - tangent_c * tangent_c);
    d_gates[0] = d_c * third * first * (1 - first), d_gates[1] = d_c * c * second * (1 - second);
    d_gates[2 % GATES] = d_c * first * (1 - third * third), d_gates[3 % GATES] = d_h * tangent_c * fourth * (1 - fourth);
    d_c *= second, direct = 0;
}

// What a thread carries from step to step: of each of its states the gradients that do not pass through W_hh.
struct Carried {
    float direct[OWN], d_c[OWN];
    int ends[OWN];

    __device__ Carried(const Arrays& arrays, const Thread& me, const length* lengths) {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const index b = me.sequence(i), place = b * HIDDEN + me.unit(i);
            const bool is_inside = me.unit(i) < HIDDEN && b < arrays.batch;
            direct[i] = is_inside && arrays.d_final_h ? widen(arrays.d_final_h[place]) : 0;
            d_c[i] = is_inside && arrays.d_final_c ? widen(arrays.d_final_c[place]) : 0;
            ends[i] = !is_inside ? 0 : lengths ? (int)lengths[b] : arrays.steps;
        }
    }

    // What came through W_hh from the step before in this order.
    __device__ void add_sums(const Shared& shared, const Thread& me, int buffer) {
#pragma unroll
        for (int i = 0; i < OWN; i++)
            for (int from = 0; from < BLOCKS; from++) direct[i] += shared.sums[buffer][from][i / A_TILE][me.local_unit(i)][me.number % 8];
    }

    __device__ void step(Shared& shared, const Arrays& arrays, const Thread& me, int t, int buffer) {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const index b = me.sequence(i), row = arrays.row(t, b);
            const int j = me.unit(i), n = me.column(i);
            const bool is_inside = j < HIDDEN && b < arrays.batch;
            float d_gates[GATES] = {}, d_product = 0;
            if (t < ends[i]) {
                const float d_h = direct[i] + read(arrays.d_output, t, b, j);
                through(arrays, b, j, t, ends[i], d_h, direct[i], d_c[i], d_gates, &d_product);
            }
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                const int k = gate * UNITS + me.local_unit(i);
                const storage found = narrow(d_gates[gate]);
                const storage of_h = narrow(CELL == GRU && gate == 2 ? d_product : d_gates[gate]);
                shared.gates[buffer][n / 8][k / 32][n % 8][k % 32] = of_h;
                if (is_inside) arrays.d_gates[row * GATES * HIDDEN + gate * HIDDEN + j] = found;
                if (is_inside && CELL == GRU && gate == 2) arrays.d_product[row * HIDDEN + j] = of_h;
            }
        }
    }

    // is_stuck: nothing is known, which all results say.
    __device__ void finish(const Arrays& arrays, const Thread& me, bool is_stuck) const {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const index b = me.sequence(i), place = b * HIDDEN + me.unit(i);
            if (me.unit(i) >= HIDDEN || b >= arrays.batch) continue;
            arrays.d_first_h[place] = narrow(is_stuck ? NOT_A_NUMBER : direct[i]);
            if (CELL == LSTM) arrays.d_first_c[place] = narrow(is_stuck ? NOT_A_NUMBER : d_c[i]);
            for (int t = 0; is_stuck && t < arrays.steps; t++) {
                for (int gate = 0; gate < GATES; gate++)
                    arrays.d_gates[(arrays.row(t, b) * GATES + gate) * HIDDEN + me.unit(i)] = narrow(NOT_A_NUMBER);
                if (CELL == GRU) arrays.d_product[arrays.row(t, b) * HIDDEN + me.unit(i)] = narrow(NOT_A_NUMBER);
            }
        }
    }
};

// The sums of 16 units go to their block: lanes of even t have 4 sequences of row g, those of odd t of row g + 8.
__device__ inline void send_sums(Shared& shared, const Thread& me, const Sums& sums, int unit, int tile, int buffer) {
    const bool is_odd = me.lane % 2;
    const float first = __shfl_xor_sync(~0u, is_odd ? sums.at[0] : sums.at[2], 1);
    const float second = __shfl_xor_sync(~0u, is_odd ? sums.at[1] : sums.at[3], 1);
    const uint4 all = {__float_as_uint(is_odd ? first : sums.at[0]), __float_as_uint(is_odd ? second : sums.at[1]),
                       __float_as_uint(is_odd ? sums.at[2] : first), __float_as_uint(is_odd ? sums.at[3] : second)};
    const int local = unit % UNITS + me.lane / 4 + (is_odd ? 8 : 0);
    const word place = address_of(&shared.sums[buffer][me.first_unit / UNITS][tile][local][me.lane % 4 / 2 * 4]);
    send(in_block(place, unit / UNITS), all, in_block(address_of(&shared.barriers[buffer]), unit / UNITS));
}

__device__ inline void multiply_and_send(Shared& shared, const Slice* held, const Thread& me, int buffer) {
#pragma unroll
    for (int turn = 0; turn < TILES * ROW_TILES; turn += AT_ONCE) {
        const int tile = turn / ROW_TILES, first = turn % ROW_TILES;
        Sums sums[AT_ONCE] = {};
#pragma unroll
        for (int s = 0; s < SLICES; s++) {
            const uint4 gates = *(const uint4*)&shared.gates[buffer][tile][s][me.lane / 4][me.lane % 4 * 8];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int part = s * ROW_TILES + first + i;
                const bool is_held = part < HELD;
                const uint4(*left)[THREADS] = shared.weights[is_held ? 0 : part - HELD];
                add_slice(sums[i], is_held ? held[is_held ? part : 0] : Slice{left[0][me.number], left[1][me.number]}, gates);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int unit = (me.share * ROW_TILES + first + i) * 16;
            if (unit < UNITS * BLOCKS) send_sums(shared, me, sums[i], unit, tile, buffer);
        }
    }
}

__device__ inline void start(Shared& shared, const Arrays& arrays, const Thread& me, Slice* held) {
    if (me.number == 0) {
        for (int i = 0; i < 2; i++) make_barrier(address_of(&shared.barriers[i]));
        show_barriers();
    }
    for (int i = me.number; i < (int)(sizeof(shared.gates) / 4); i += THREADS) ((unsigned*)shared.gates)[i] = 0;
#pragma unroll
    for (int part = 0; part < HELD; part++) held[part] = part_of(arrays.weight, me, part);
    for (int part = HELD; part < PARTS; part++) {
        const Slice found = part_of(arrays.weight, me, part);
        shared.weights[part - HELD][0][me.number] = found.upper, shared.weights[part - HELD][1][me.number] = found.lower;
    }
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1) persistent_backward(
    const storage* kept, const float* cells, index row_step, index row_sequence, const storage* output, index output_step,
    index output_sequence, const storage* weight, const storage* first_h, const storage* first_c, const storage* d_output,
    index d_output_step, index d_output_sequence, const storage* d_final_h, const storage* d_final_c, storage* d_gates,
    storage* d_product, storage* d_first_h, storage* d_first_c, const length* lengths, int* status, int steps, int batch,
    int is_reverse) {
    Shared& shared = *(Shared*)block_memory();
    const int thread = threadIdx.x;
    const int rank = rank_in_cluster();
    const Thread me = {thread, (thread / 32 + rank) % WARPS, thread % 32, rank * UNITS, (int)(blockIdx.x / BLOCKS) * SEQUENCES};
    const Arrays arrays = {{output, output_step, output_sequence}, {d_output, d_output_step, d_output_sequence}, kept, weight,
                           first_h, first_c, d_final_h, d_final_c, cells, d_gates, d_product, d_first_h, d_first_c,
                           row_step, row_sequence, steps, batch, is_reverse};
    Slice held[HELD];
    start(shared, arrays, me, held);
    Carried carried(arrays, me, lengths);
    __syncthreads();
    sync_cluster();
    bool is_stuck = false;
    for (int i = 0; i < steps && !is_stuck; i++) {
        const int buffer = i % 2, last = 1 - buffer;
        if (thread == 0) expect(address_of(&shared.barriers[buffer]), BLOCKS * UNITS * SEQUENCES * 4);
        if (i > 0) is_stuck = !wait_for(address_of(&shared.barriers[last]), (i - 1) / 2 % 2);
        if (i > 0) carried.add_sums(shared, me, last);
        carried.step(shared, arrays, me, is_reverse ? i : steps - 1 - i, buffer);
        is_stuck = __syncthreads_or(is_stuck);
        if (!is_stuck) multiply_and_send(shared, held, me, buffer);
    }
    if (!is_stuck) is_stuck = !wait_for(address_of(&shared.barriers[(steps - 1) % 2]), (steps - 1) / 2 % 2);
    carried.add_sums(shared, me, (steps - 1) % 2);
    if (is_stuck) *(volatile int*)status = 1;
    carried.finish(arrays, me, is_stuck);
    sync_cluster();
}
