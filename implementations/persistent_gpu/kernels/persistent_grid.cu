// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in one
//   launch, as persistent_gpu.cu, for W_hh that a cluster has no room for or takes longer with: it stays in the registers and
//   shared memory of as many multiprocessors as there are.
// Layout: as persistent_gpu.cu, but for left_over, in whose place there is
//   handoff [tiles of all groups, 2, BLOCKS, PARCELS] of 16 bytes, read and written: all 0 before the launch. A parcel is a
//   part of what a block tells of its units of a tile, sequence by sequence, and t + 1, where h_t is what it tells of.
//   No two may alias. Alignment: of the element; weight: WIDTH bytes; handoff: 16 bytes.
// Launch: cooperative, all blocks at once: a group of BLOCKS blocks for each TILES tiles of 8 sequences, which knows nothing of
//   others; block r of a group owns UNITS hidden units from r * UNITS. Its 8 warps are GROUPS of columns of W_hh by groups of
//   rows. SEQUENCES of a tile are told, 8 or as many as there are at all. READERS more threads read what is told, with
//   several tiles of the next one meanwhile, into BUFFERS buffers by turns; registers go over to the others where
//   OTHER_REGISTERS says how many. Shared bytes: Form.shared_bytes.
// Cost: reads G H^2 + T B G H values, writes T B H; 2 T B G H^2 operations. Each reads 4/3 B H values of others a step, of TF32
//   2/3. Of an input product as persistent_gpu.cu, for a group in place of a cluster.
// Limits: compute capability 8.0; UNITS a multiple of 4, and of W_hh nothing left over; T, B, G * H below 2^30, as
//   persistent_gpu.cu; offsets 64-bit.
// Order: a parcel is written and read as one (grid.cuh), so who sees its number sees it whole. h_(t+1) of a tile takes the place
//   of h_(t-1): who writes it has read all of h_t, and of that each part was written by a block all of whose threads had read
//   all of h_(t-1), the block's barriers lying between. So nobody is still to read what is overwritten, and a reader meets the
//   number it waits for, or that of two steps before, or 0. In a block three barriers a tile and step lie between reading
//   parcels and the product, sums and gates, gates and telling. A wait that takes WATCHDOG_NS is given up by all threads of its
//   block at the last of them, and in turn by all blocks of the group. Sums are taken in one order: bit-equal repeats.
//   Of an input product a block's threads read what the same block wrote, and all of it met in between.
#define GATE_THREADS 256
#define SUMS 1
#include "persistent_step.cuh"

#include "jitter.cuh"
#include "parcels.cuh"
#include "roles.cuh"

#define OF_ALL (BLOCKS * Told<UNITS>::PARCELS)  // of a tile
#define HEARERS (READERS > 0 ? READERS : THREADS)
#define ALL (THREADS + READERS)
#define AT_ONCE (BUFFERS > 0 ? 16 : 8)  // parcels of a thread
#define AHEAD (TILES == 1 ? 0 : BUFFERS > 0 ? AT_ONCE : 4)  // of these, during the product of the tile before
#define AFTER_TELLING 400  // clocks, before which others' states of one tile are hardly there: who asks too early asks twice
// Meetings: a buffer's states are there, have been read; all sums or states of the block are found; readers are as far.
enum Where { FULL = 1, EMPTY = 3, FOUND = 5, READ = 6 };

#include "input_product.cuh"

// Where registers are few found anew each time it is asked for, so that what follows from it takes none meanwhile.
__device__ inline Thread this_thread(int batch) {
    unsigned number = threadIdx.x % THREADS, block = blockIdx.x;
    if (BUFFERS || 8 * HELD + 4 * ROW_TILES > 130) again(number), again(block);  // registers are few
    if (TILES == 1) number %= THREADS;  // which the compiler is to know, save where it would keep too much for it
    return {(int)number, (int)(number / 32), (int)(number % 32), (int)(block % BLOCKS * UNITS), (int)(block / BLOCKS * TILES * 8), batch};
}

__device__ inline int tiles_of(const Thread& me) { return min(TILES, (me.batch - me.first_sequence + 7) / 8); }

// What is told of h_t of a tile.
__device__ inline uint4* place_of(uint4* handoff, const Thread& me, int t, int tile) {
    return handoff + (index)((me.first_sequence / 8 + tile) * 2 + t % 2) * OF_ALL;
}

// The states of a block's own units in a tile, as they are told.
typedef Told<UNITS> Own;

// handoff: of the tile and step.
__device__ inline void tell(const Own& own, uint4* handoff, const Thread& me, unsigned number) {
    own.tell(handoff + me.first_unit / UNITS * Own::PARCELS, me.number, number);
}

struct Shared {
    States states[BUFFERS > 0 ? BUFFERS : 1];
    Own own;
    Steps steps;
    int is_stuck[2];  // some reader has given up the wait for that buffer's states
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "Form.shared_bytes");

typedef Heard<Own::parcel, OF_ALL, AHEAD, HEARERS, AT_ONCE> Parcels;

// All of h_t of a tile, of which AHEAD were begun. False when it does not come.
__device__ inline bool hear(Parcels& parcels, States& states, uint4* handoff, const Thread& me, int t, int tile) {
    const auto put = [&](unsigned place, const uint4& parcel) { Own::put(states, place, parcel); };
    return parcels.finish(place_of(handoff, me, t, tile), me.number, t + 1, put);
}

// The warps after the first 8, which do nothing else: the states of every tile and step. me: numbered among them.
__device__ inline void read_all(Shared& shared, uint4* handoff, const Thread& me, int steps, int tiles, bool is_first_told) {
    Parcels parcels;
    parcels.begin_ahead(place_of(handoff, me, 0, 0), me.number);
    int visits = 0;
    for (int t = 0; t < steps; t++)
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const int buffer = visits % max(BUFFERS, 1), next = tile + 1 < tiles ? tile + 1 : 0;
            if (visits++ >= BUFFERS) meet(EMPTY + buffer, ALL);
            if (TILES == 1) let_pass(AFTER_TELLING);
            if ((t > 0 || is_first_told) && !hear(parcels, shared.states[buffer], handoff, me, t, tile))
                *(volatile int*)&shared.is_stuck[buffer] = 1;
            meet(READ, READERS);
            jitter(t, 6);
            const bool is_stuck = *(volatile int*)&shared.is_stuck[buffer];
            come(FULL + buffer, ALL);
            if (is_stuck) return;
            parcels.begin_ahead(place_of(handoff, me, next > 0 ? t : t + 1, next), me.number);
        }
}

// The first 8 warps: sums and states of every tile and step, told and written. False where a wait was given up.
__device__ inline bool find_all(Shared& shared, const Arrays& arrays, Resident& weights, uint4* handoff, int batch) {
    const int tiles = tiles_of(this_thread(batch));
    Walk walk(arrays, this_thread(batch), tiles);
    Inputs inputs = {};
    inputs.read(arrays, walk, 0, 0);
    Parcels parcels;
    if (!BUFFERS) parcels.begin_ahead(place_of(handoff, this_thread(batch), 0, 0), threadIdx.x);
    bool is_stuck = false;
    int buffer = 0;
    for (int t = 0; t < arrays.steps && !is_stuck; t++) {
#pragma unroll 1
        for (int tile = 0; tile < tiles && !is_stuck; tile++) {
            const Thread me = this_thread(batch);
            const bool is_last = tile + 1 == tiles, is_told = t + 1 < arrays.steps;
            States& states = shared.states[buffer];
            jitter(t, 0);
            if (!BUFFERS && (t > 0 || arrays.first_h)) is_stuck = !hear(parcels, states, handoff, me, t, tile);
            jitter(t, 1);
            meet(FULL + buffer, ALL);
            if (BUFFERS) is_stuck = *(volatile int*)&shared.is_stuck[buffer];
            else parcels.begin_ahead(place_of(handoff, me, is_last ? t + 1 : t, is_last ? 0 : tile + 1), me.number);
            jitter(t, 2);
            multiply(shared.steps, 0, weights, me, own_columns(states, me.warp % GROUPS, me.lane));
            const Ready ready(shared.steps, inputs, me, tile, arrays.step(t));
            meet(FOUND, THREADS);
            jitter(t, 3);
            const Found found(shared.steps, 0, ready, me, tile, states, shared.own);
            if (BUFFERS) come(EMPTY + buffer, ALL), meet(FOUND, THREADS);
            else is_stuck = __syncthreads_or(is_stuck);
            jitter(t, 4);
            if (is_told && !is_stuck) tell(shared.own, place_of(handoff, me, t + 1, tile), me, t + 2);
            found.write(walk, ready, tile);
            if (!is_told) found.write_final(arrays, shared.steps, ready, me, tile);
            walk.advance(is_last);
            read_next(inputs, walk, arrays, tiles, tile, t);
            buffer = buffer + 1 < BUFFERS ? buffer + 1 : 0;
        }
    }
    return !is_stuck;
}

extern "C" __global__ void __launch_bounds__(ALL, 1) persistent_forward(
    OF_INPUTS const storage* gates, index gates_step, index gates_sequence, const storage* weight, const storage* bias_ih,
    const storage* bias_hh, const storage* first_h, const storage* first_c, storage* output, index output_step,
    index output_sequence, storage* final_h, storage* final_c, const length* lengths, storage* kept, float* cells,
    index row_step, index row_sequence, uint4* handoff, int* status, int steps, int batch, int is_reverse) {
    const Arrays arrays = {gates, weight, bias_ih, bias_hh, first_h, first_c, output, final_h, final_c, kept, cells,
                           gates_step, gates_sequence, output_step, output_sequence, row_step, row_sequence, steps, is_reverse};
#if INPUTS
    multiply_inputs({x, x_step, x_sequence, weight_ih}, arrays, batch);
#endif
    Shared& shared = *(Shared*)block_memory();
    const Thread first = this_thread(batch);
    const int tiles = tiles_of(first);
    clear(&shared, sizeof(shared.states) + sizeof(Own));
    if (threadIdx.x < 2) shared.is_stuck[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        if (OTHER_REGISTERS) make_do_with<READER_REGISTERS>();
        read_all(shared, handoff, first, steps, tiles, first_h);
        return;
    }
    if (OTHER_REGISTERS) take<OTHER_REGISTERS>();
    start(shared.steps, arrays, first, lengths);
    for (int tile = 0; first_h && tile < tiles; tile++) {
        start_own(shared.own, arrays, first, tile);
        meet(FOUND, THREADS);
        tell(shared.own, place_of(handoff, first, 0, tile), first, 1);
        meet(FOUND, THREADS);
    }
    jitter(-1, 5);
    Resident weights(shared.steps.room, nullptr, 0, [&](int s, int i) { return part_of(weight, first, s, i); });
    meet(FOUND, THREADS);
    if (!find_all(shared, arrays, weights, handoff, batch)) {
        const Thread me = this_thread(batch);
        *(volatile int*)status = 1;
        give_up(arrays, me, tiles_of(me));
    }
}
