// Maths: the backward pass of persistent_gpu.cu, CELL, all T steps of one layer and direction in one launch: from the last step
//   to the first, dh = d_output + W_hh^T d_gates of the step after, d_gates from dh and what the forward pass kept.
// Layout: kept [rows, 4*H] storage, cells [rows, H] float, read: as persistent_gpu.cu wrote them
//   output, d_output [T, B, H] storage, read: element (t, b, h) at t * NAME_step + b * NAME_sequence + h
//   weight [G*H, H] storage, read: W_hh. first_h, first_c, d_final_h, d_final_c [B, H] storage, read, null for zeros
//   lengths [B] int64, read, null for none: a step at which a sequence is over passes gradients on
//   d_gates [rows, G*H] storage, written: with respect to W_ih x. d_product [rows, H] storage, written by GRU: to W_hn h
//   d_first_h, d_first_c [B, H] storage, written, the latter by LSTM only. left_over and status as in persistent_gpu.cu
//   No two may alias. Alignment: of the element; left_over: 16 bytes.
// Launch: clusters, units and sequences as in persistent_gpu.cu. A block multiplies the gradients of its own gates, which do not
//   leave it, by rows of W_hh^T, those of all units: each of its 8 warps has ROW_TILES tiles of 16, TOGETHER of them at once, so
//   that their sums are on their way while others are multiplied. Shared bytes: Form.shared_bytes.
// Cost: reads G H^2 + T B S H values, S being 9 (LSTM, c in float counting twice), 6 (GRU), 2 (RNN), writes T B G H (GRU: 4 H);
//   2 T B G H^2 operations. Between blocks 4 B H bytes a step and block.
// Limits: as persistent_gpu.cu; UNITS a multiple of 16, so that a row tile's sums are all of one block's units; BLOCKS 2 at
//   least, as a block that is a cluster alone may not send to itself.
// Order: sums of step i of a tile go to buffer i % 2 of the units' block and are waited for by their bytes. Who sends those of
//   i + 2 has all of i + 1, whose every sender passed its block's barrier of that tile and step i + 1, where all its threads had
//   added those of i. Gates alternate from one tile to the next: who writes them passed the barrier of the tile before, which
//   every warp reaches after it has multiplied the gates of the one before that. A wait that takes WATCHDOG_NS ends as in
//   persistent_gpu.cu. Sums are added in the order of blocks: bit-equal repeats.
#include "cluster.cuh"
#include "jitter.cuh"
#include "recurrent_gates.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define SLICES_EACH ((GATES * UNITS + SLICE - 1) / SLICE)  // of the block's gates
#define ROW_TILES ((UNITS * BLOCKS + 16 * WARPS - 1) / (16 * WARPS))  // of 16 units, of a warp
#define TOLD (UNITS * 8 * 4)  // bytes, by each block to each for a tile
#define STATES ((UNITS * 8 + THREADS - 1) / THREADS)  // of a thread in a tile

#include "gathered.cuh"
#include "resident.cuh"

// A warp has 16 units of two sequences at once.
struct Thread {
    int number, warp, lane, first_unit, first_sequence, batch;
    __device__ int local_unit(int state) const { return (number + state * THREADS) / 128 * 16 + number % 16; }
    __device__ int column(int) const { return number / 16 % 8; }
    __device__ int unit(int state) const { return first_unit + local_unit(state); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * 8 + column(state); }
    __device__ bool is_inside(int tile, int state) const {
        return local_unit(state) < UNITS && unit(state) < HIDDEN && sequence(tile, state) < batch;
    }
    // Of all units the i-th tile of rows of this warp. Each block begins with its own units, so that no two tell the same at once.
    __device__ int row_tile(int i) const {
        const int found = first_unit / 16 + warp * ROW_TILES + i;
        return found < WARPS * ROW_TILES ? found : found - WARPS * ROW_TILES;
    }
};

#include "backward_step.cuh"

struct Shared {
    unsigned long long barriers[2][8];  // a tile's, and the room up to the next 128 bytes
    float sums[2][TILES][BLOCKS][UNITS / 16][32][4];  // four of a lane beside each other, lanes by place_of
    storage gates[2][SLICES_EACH][8][SLICE];
    Carried carried;
    Room room;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "Form.shared_bytes");
static_assert(BLOCKS > 1, "a block sends to itself");

// Where a lane (g, t) puts its sums: banks differ for lanes beside each other, which write at once, and for those of one t,
// whose sums a warp reads at once.
__device__ inline int place_of(int g, int t) { return t * 8 + (g + 2 * t) % 8; }

// Rows are all units, columns the gates of the block's.
__device__ inline Slice part_of(const storage* weight, const Thread& me, int turn, int i) {
    const int u = me.row_tile(turn / SLICES_EACH * TOGETHER + i) * 16 + me.lane / 4;
    const int k = turn % SLICES_EACH * SLICE + me.lane % 4 * PIECE, gate = k / UNITS;
    const Gate found = {gate, gate < GATES ? me.first_unit + k % UNITS : HIDDEN};
    return gathered<PIECE>(weight, u, HIDDEN, [&](int) { return found; });
}

// What all blocks have told of a state, on top of `sum`.
__device__ inline float with_sums(float sum, const Shared& shared, const Thread& me, int tile, int s, int buffer) {
    const int row = me.local_unit(s) % 16, column = me.column(s);
    const float* place = shared.sums[buffer][tile][0][me.local_unit(s) / 16][place_of(row % 8, column / 2)];
#pragma unroll
    for (int from = 0; from < BLOCKS; from++) sum += place[from * UNITS * 8 + row / 8 * 2 + column % 2];
    return sum;
}

// A row tile's sums go to the block whose units they are.
__device__ inline void send_sums(Shared& shared, const Thread& me, const Sums& sums, int row_tile, int tile, int buffer) {
    const int to = row_tile / (UNITS / 16);
    if (ROW_TILES * WARPS * 16 > UNITS * BLOCKS && to >= BLOCKS) return;
    const word place = address_of(shared.sums[buffer][tile][me.first_unit / UNITS][row_tile % (UNITS / 16)]);
    const uint4 all = {__float_as_uint(sums.at[0]), __float_as_uint(sums.at[1]),
                       __float_as_uint(sums.at[2]), __float_as_uint(sums.at[3])};
    send(in_block(place + place_of(me.lane / 4, me.lane % 4) * 16, to), all,
         in_block(address_of(&shared.barriers[buffer][tile]), to));
}

__device__ inline void multiply_and_send(Shared& shared, Resident& weights, const Thread& me, int tile, int gates, int buffer) {
    const uint4* columns = (const uint4*)shared.gates[gates] + me.lane;
    Sums sums[TOGETHER] = {};
    jitter(buffer, 0);
    weights.in_order([&](int turn, auto part) {
        const int slice = turn % SLICES_EACH;
        const Columns of_slice = columns_of(columns[slice * 32]);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) add_slice(sums[i], part(i), of_slice);
        if (slice + 1 < SLICES_EACH) return;
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            send_sums(shared, me, sums[i], me.row_tile(turn / SLICES_EACH * TOGETHER + i), tile, buffer);
            sums[i] = {};
        }
    });
}

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1) persistent_backward(
    const storage* kept, const float* cells, index row_step, index row_sequence, const storage* output, index output_step,
    index output_sequence, const storage* weight, const storage* first_h, const storage* first_c, const storage* d_output,
    index d_output_step, index d_output_sequence, const storage* d_final_h, const storage* d_final_c, storage* d_gates,
    storage* d_product, storage* d_first_h, storage* d_first_c, const length* lengths, uint4* left_over, int* status, int steps,
    int batch, int is_reverse) {
    Shared& shared = *(Shared*)block_memory();
    const int thread = threadIdx.x, rank = rank_in_cluster();
    const Thread me = {thread, thread / 32, thread % 32, rank * UNITS, (int)(blockIdx.x / BLOCKS) * TILES * 8, batch};
    const Arrays arrays = {{output, output_step, output_sequence}, {d_output, d_output_step, d_output_sequence}, kept, weight,
                           first_h, first_c, d_final_h, d_final_c, cells, d_gates, d_product, d_first_h, d_first_c,
                           row_step, row_sequence, steps, is_reverse};
    if (thread == 0) {
        for (int i = 0; i < 16; i++) make_barrier(address_of(&shared.barriers[0][i]));
        show_barriers();
    }
#pragma unroll 1
    for (int i = me.number; i < (int)(sizeof(shared.gates) / 4); i += THREADS) ((unsigned*)shared.gates)[i] = 0;
    shared.carried.start(arrays, me, lengths);
    Resident weights(shared.room, left_over, rank, [&](int turn, int i) { return part_of(weight, me, turn, i); });
    const int tiles = min(TILES, (batch - me.first_sequence + 7) / 8);
    __syncthreads();
    jitter(-1, 4);
    sync_cluster();
    Inputs ahead = {};
    ahead.read(arrays, me, 0, 0);
    bool is_stuck = false;
    int gates = 0;
    for (int i = 0; i < steps && !is_stuck; i++) {
        const int now = i % 2, last = 1 - now;
#pragma unroll 1
        for (int tile = 0; tile < tiles && !is_stuck; tile++) {
            Slopes slopes[STATES];
            float d_h[STATES];
            const int end = shared.carried.ends[tile][me.column(0)];
#pragma unroll
            for (int s = 0; s < STATES; s++) {
                slopes[s] = ahead.slopes(arrays, me, tile, s, arrays.time(i + 1), end);
                const bool is_alive = me.is_inside(tile, s) && arrays.time(i) < end;
                d_h[s] = shared.carried.d_h[tile][s][thread] + (is_alive ? of_raw(ahead.d_output[s]) : 0);
            }
            if (thread == 0) expect(address_of(&shared.barriers[now][tile]), BLOCKS * TOLD);
            const bool is_last = tile + 1 == tiles;
            ahead.read(arrays, me, is_last ? 0 : tile + 1, min(i + is_last, steps - 1));
            jitter(i, 1);
            if (i > 0) is_stuck = !wait_for(address_of(&shared.barriers[last][tile]), (i - 1) / 2 % 2);
            jitter(i, 2);
#pragma unroll
            for (int s = 0; s < STATES; s++) {
                if (me.local_unit(s) >= UNITS) continue;
                if (i > 0) d_h[s] = with_sums(d_h[s], shared, me, tile, s, last);
                step(shared.carried, arrays, slopes[s], me, tile, s, i, d_h[s], [&](int gate, storage found) {
                    const int k = gate * UNITS + me.local_unit(s);
                    shared.gates[gates][k / SLICE][me.column(s)][k % SLICE] = found;
                });
            }
            jitter(i, 3);
            is_stuck = __syncthreads_or(is_stuck);
            if (!is_stuck) multiply_and_send(shared, weights, me, tile, gates, now);
            gates = 1 - gates;
        }
    }
    for (int tile = 0; tile < tiles && !is_stuck; tile++)
        is_stuck = !wait_for(address_of(&shared.barriers[(steps - 1) % 2][tile]), (steps - 1) / 2 % 2);
    is_stuck = __syncthreads_or(is_stuck);
    if (is_stuck) *(volatile int*)status = 1;
    for (int tile = 0; tile < tiles; tile++) {
        for (int s = 0; s < STATES && !is_stuck; s++)
            finish(shared.carried, arrays, me, tile, s,
                   with_sums(shared.carried.d_h[tile][s][thread], shared, me, tile, s, (steps - 1) % 2));
        if (is_stuck) give_up(arrays, me, tile);
    }
    weights.finish();
    sync_cluster();
}
