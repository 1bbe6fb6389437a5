// Maths: the backward pass of persistent_gpu.cu, CELL, all T steps of one layer and direction in one launch, as
//   persistent_gpu_backward.cu, for W_hh that a cluster has no room for: it stays in the registers and shared memory of as many
//   multiprocessors as there are.
// Layout: as persistent_gpu_backward.cu, but for left_over, in whose place there is
//   handoff [tiles of all groups, 2] of [ACROSS, DOWN, Gradients::PARCELS] and [BLOCKS, ACROSS, SUMS], of 16 bytes, read and
//   written: all 0 before the launch. A parcel has the number i + 1, of the i-th step backward: of what a block's gates have
//   for gradients, sequence by sequence, and of sums, in float32, that a block has for another.
//   No two may alias. Alignment: of the element; handoff: 16 bytes.
// Launch: cooperative, all blocks at once: a group of BLOCKS = DOWN * ACROSS blocks for each TILES tiles of 8 sequences, which
//   knows nothing of others; block r of a group, in row r / ACROSS and column r % ACROSS, owns UNITS hidden units from r * UNITS.
//   It multiplies the gradients of the gates of its column's units by W_hh^T's rows of its row's units, a part of their sums, which
//   go to the unit's block and are added there. Its 8 warps are GROUPS of gates by groups of rows. SEQUENCES of a tile are
//   told, 8 or as many as there are at all. Shared bytes: Form.shared_bytes.
// Cost: as persistent_gpu_backward.cu; between blocks each reads 4/3 B H (G / ACROSS values, of TF32 half of that, + 4 bytes /
//   DOWN) a step, and writes as many sums.
// Limits: compute capability 8.0; UNITS a multiple of 4, and of W_hh nothing left over; T, B, G * H below 2^30; offsets 64-bit.
// Order: a parcel is written and read as one (grid.cuh), so who sees its number sees it whole. Gradients of step i + 2 of a tile
//   take the place of those of i: who tells them has had those of i + 1 of its whole column, whose blocks, all their threads, had
//   multiplied those of i before. Sums of i + 2 take the place of those of i: who tells them has had those of i + 1 of its whole
//   row, whose blocks had added those of i before. So a reader meets the number it waits for, that of two steps before, or 0.
//   In a block a barrier lies between reading sums and adding them, gates and telling, reading gradients and the product, sums
//   and telling: of two uses of one thing in shared memory two of the four lie between, or the next tile's first. A wait that
//   takes WATCHDOG_NS is given up by the whole block at the next of them, and in turn by all. Sums are added in one order:
//   bit-equal repeats.
#include "recurrent_gates.cuh"
#include "warp_product.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define BLOCKS (DOWN * ACROSS)
#define OWN_GATES (GATES * UNITS)
#define SLICES_EACH ((OWN_GATES * DOWN + SLICE * GROUPS - 1) / (SLICE * GROUPS))  // of columns, of a group of warps
#define ROW_TILES ((UNITS * ACROSS * GROUPS + 16 * WARPS - 1) / (16 * WARPS))  // of a warp
#define ROWS (ROW_TILES * 16 * WARPS / GROUPS)
#define STATES ((UNITS * 8 + THREADS - 1) / THREADS)  // of a thread in a tile
#define SUMS ((SEQUENCES * UNITS + 2) / 3)  // parcels, of a block for another

#include "gathered.cuh"
#include "jitter.cuh"
#include "parcels.cuh"

#define AHEAD (TILES == 1 || SPLIT ? 0 : 4)  // parcels of a thread, read while the tile before is computed

struct Thread {
    int number, warp, lane, rank, first_sequence, batch;
    __device__ int row() const { return rank / ACROSS; }
    __device__ int across() const { return rank % ACROSS; }
    __device__ int local_unit(int state) const { return (number + state * THREADS) % UNITS; }
    __device__ int column(int state) const { return (number + state * THREADS) / UNITS; }
    __device__ int unit(int state) const { return rank * UNITS + local_unit(state); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * 8 + column(state); }
    __device__ bool is_inside(int tile, int state) const {
        return column(state) < SEQUENCES && unit(state) < HIDDEN && sequence(tile, state) < batch;
    }
};

#include "backward_step.cuh"

typedef Told<OWN_GATES> Gradients;

struct Shared {
    States columns;  // gates' gradients of the units of the block's column
    Gradients own;
    float sums[GROUPS][8][ROWS + 4];  // by sequences, so far apart that banks differ
    float told[ACROSS * SUMS * 3];    // sums, by all blocks of the row
    Carried carried;
    Room room;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "Form.shared_bytes");

// Found anew each time it is asked for, so that what follows from it takes no registers meanwhile.
__device__ inline Thread this_thread(int batch) {
    unsigned number = threadIdx.x, block = blockIdx.x;
    again(number), again(block);
    number %= THREADS;
    return {(int)number, (int)(number / 32), (int)(number % 32), (int)(block % BLOCKS), (int)(block / BLOCKS * TILES * 8), batch};
}

// What is told in the i-th step of a tile: gradients column by column of blocks, sums block by block.
__device__ inline uint4* gradients_of(uint4* handoff, const Thread& me, int i, int tile) {
    const index each = BLOCKS * (Gradients::PARCELS + ACROSS * SUMS);
    return handoff + ((me.first_sequence / 8 + tile) * 2 + i % 2) * each;
}
__device__ inline uint4* sums_of(uint4* handoff, const Thread& me, int i, int tile) {
    return gradients_of(handoff, me, i, tile) + BLOCKS * Gradients::PARCELS;
}

// Rows are the units of the block's row, columns the gates of those of its column, after which comes what is no block's unit.
__device__ inline Slice part_of(const storage* weight, const Thread& me, int s, int i) {
    const int first = me.row() * ACROSS * UNITS, r = (me.warp / GROUPS * ROW_TILES + i) * 16 + me.lane / 4;
    const int k = (me.warp % GROUPS * SLICES_EACH + s) * SLICE + me.lane % 4 * PIECE;
    return gathered<4>(weight, first + r, min(first + ACROSS * UNITS, HIDDEN), [&](int i) {
        const int from = (k + i) / OWN_GATES, gate = (k + i) % OWN_GATES / UNITS;
        return Gate{gate, (from * ACROSS + me.across()) * UNITS + (k + i) % UNITS};
    });
}

// The block's part of the sums of its row's units.
__device__ inline void multiply(Shared& shared, Resident& weights, const Thread& me) {
    Sums sums[ROW_TILES] = {};
    const int group = me.warp % GROUPS;
    add_columns<0, SLICES_EACH>(sums, weights, own_columns(shared.columns, group, me.lane));
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        const int r = (me.warp / GROUPS * ROW_TILES * 2 + i) * 8 + me.lane / 4;
        for (int next = 0; next < 2; next++)
            shared.sums[group][me.lane % 4 * 2 + next][r] = sums[i / 2].at[i % 2 * 2 + next];
    }
}

// To each block of the row the sums of its units. handoff: of the tile and step.
__device__ inline void tell_sums(const Shared& shared, uint4* handoff, const Thread& me, unsigned number) {
    for (int p = me.number; p < ACROSS * SUMS; p += THREADS) {
        const int to = p / SUMS, first = p % SUMS * 3;
        float found[3] = {};
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const int column = (first + i) / UNITS, r = to * UNITS + (first + i) % UNITS;
            if (SEQUENCES * UNITS % 3 && column >= SEQUENCES) continue;
#pragma unroll
            for (int group = 0; group < GROUPS; group++) found[i] += shared.sums[group][column][r];
        }
        uint4* place = handoff + ((me.row() * ACROSS + to) * ACROSS + me.across()) * SUMS + p % SUMS;
        publish(place, {__float_as_uint(found[0]), __float_as_uint(found[1]), __float_as_uint(found[2]), number});
    }
}

// What the blocks of the row tell of the i-th step of a tile, on its way into shared memory.
struct HeardSums {
    Heard<Words, ACROSS * SUMS, AHEAD, THREADS> heard;
    __device__ static const uint4* place(uint4* handoff, const Thread& me, int i, int tile) {
        return sums_of(handoff, me, i, tile) + me.rank * ACROSS * SUMS;
    }
    __device__ void begin(uint4* handoff, const Thread& me, int i, int tile) {
        heard.begin_ahead(place(handoff, me, i, tile), me.number);
    }
    // False when it does not come.
    __device__ bool finish(Shared& shared, uint4* handoff, const Thread& me, int i, int tile) {
        return heard.finish(place(handoff, me, i, tile), me.number, i + 1, [&](unsigned place, const uint4& parcel) {
            float* found = shared.told + place * 3;
            found[0] = __uint_as_float(parcel.x), found[1] = __uint_as_float(parcel.y), found[2] = __uint_as_float(parcel.z);
        });
    }
};

// Likewise what the blocks of the column tell.
struct HeardGradients {
    static constexpr int ALL = DOWN * Gradients::PARCELS;
    Heard<Gradients::parcel, ALL, AHEAD, THREADS> heard;
    __device__ static const uint4* place(uint4* handoff, const Thread& me, int i, int tile) {
        return gradients_of(handoff, me, i, tile) + me.across() * ALL;
    }
    __device__ void begin(uint4* handoff, const Thread& me, int i, int tile) {
        heard.begin_ahead(place(handoff, me, i, tile), me.number);
    }
    __device__ bool finish(Shared& shared, uint4* handoff, const Thread& me, int i, int tile) {
        return heard.finish(place(handoff, me, i, tile), me.number, i + 1, [&](unsigned place, const uint4& parcel) {
            Gradients::put(shared.columns, place, parcel);
        });
    }
};

// What all blocks of the row have told of a state, on top of `sum`.
__device__ inline float with_sums(float sum, const Shared& shared, const Thread& me, int s) {
    const float* place = shared.told + me.column(s) * UNITS + me.local_unit(s);
#pragma unroll
    for (int from = 0; from < ACROSS; from++) sum += place[from * SUMS * 3];
    return sum;
}

// The i-th step backward of the block's own units of a tile, the sums of the step before being there; then what is left of d_h.
__device__ inline void step_units(Shared& shared, const Arrays& arrays, const Inputs& inputs, const Thread& me, int tile, int i) {
#pragma unroll
    for (int s = 0; s < STATES; s++) {
        if (me.column(s) >= SEQUENCES) continue;
        const float carried = shared.carried.d_h[tile][s][me.number], d_h = i > 0 ? with_sums(carried, shared, me, s) : carried;
        if (i == arrays.steps) {
            finish(shared.carried, arrays, me, tile, s, d_h);
            continue;
        }
        const int end = shared.carried.ends[tile][me.column(s)];
        const bool is_alive = me.is_inside(tile, s) && arrays.time(i) < end;
        const Slopes slopes = inputs.slopes(arrays, me, tile, s, arrays.time(i + 1), end);
        const float all_d_h = d_h + (is_alive ? of_raw(inputs.d_output[s]) : 0);
        step(shared.carried, arrays, slopes, me, tile, s, i, all_d_h, [&](int gate, storage found) {
            shared.own.of(gate * UNITS + me.local_unit(s), me.column(s)) = found;
        });
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) persistent_backward(
    const storage* kept, const float* cells, index row_step, index row_sequence, const storage* output, index output_step,
    index output_sequence, const storage* weight, const storage* first_h, const storage* first_c, const storage* d_output,
    index d_output_step, index d_output_sequence, const storage* d_final_h, const storage* d_final_c, storage* d_gates,
    storage* d_product, storage* d_first_h, storage* d_first_c, const length* lengths, uint4* handoff, int* status, int steps,
    int batch, int is_reverse) {
    Shared& shared = *(Shared*)block_memory();
    const Thread first = this_thread(batch);
    const Arrays arrays = {{output, output_step, output_sequence}, {d_output, d_output_step, d_output_sequence}, kept, weight,
                           first_h, first_c, d_final_h, d_final_c, cells, d_gates, d_product, d_first_h, d_first_c,
                           row_step, row_sequence, steps, is_reverse};
    const int tiles = min(TILES, (batch - first.first_sequence + 7) / 8);
    clear(&shared, sizeof(States) + sizeof(Gradients));
    shared.carried.start(arrays, first, lengths);
    Resident weights(shared.room, nullptr, 0, [&](int s, int i) { return part_of(weight, first, s, i); });
    __syncthreads();
    bool is_stuck = false;
    for (int i = 0; i <= steps && !is_stuck; i++) {
        HeardSums sums;
        if (i > 0) sums.begin(handoff, this_thread(batch), i - 1, 0);
#pragma unroll 1
        for (int tile = 0; tile < tiles && !is_stuck; tile++) {
            const Thread me = this_thread(batch);
            Inputs inputs = {};
            if (i < steps) inputs.read(arrays, me, tile, i);
            jitter(i, 0);
            if (i > 0) is_stuck = !sums.finish(shared, handoff, me, i - 1, tile);
            is_stuck = __syncthreads_or(is_stuck);
            if (is_stuck) continue;
            if (i > 0 && tile + 1 < tiles) sums.begin(handoff, me, i - 1, tile + 1);
            step_units(shared, arrays, inputs, me, tile, i);
            jitter(i, 1);
            __syncthreads();
            jitter(i, 2);
            const int place = me.across() * DOWN + me.row();
            if (i < steps) shared.own.tell(gradients_of(handoff, me, i, tile) + place * Gradients::PARCELS, me.number, i + 1);
            if (i + 1 < steps) inputs.fetch(arrays, me, tile, i + 1);
        }
        if (i == steps || is_stuck) continue;
        HeardGradients gradients;
        gradients.begin(handoff, this_thread(batch), i, 0);
#pragma unroll 1
        for (int tile = 0; tile < tiles && !is_stuck; tile++) {
            const Thread me = this_thread(batch);
            is_stuck = __syncthreads_or(!gradients.finish(shared, handoff, me, i, tile));
            if (is_stuck) continue;
            if (tile + 1 < tiles) gradients.begin(handoff, me, i, tile + 1);
            jitter(i, 3);
            multiply(shared, weights, me);
            __syncthreads();
            jitter(i, 4);
            tell_sums(shared, sums_of(handoff, me, i, tile), me, i + 1);
        }
    }
    if (!is_stuck) return;
    *(volatile int*)status = 1;
    for (int tile = 0; tile < tiles; tile++) give_up(arrays, this_thread(batch), tile);
}
