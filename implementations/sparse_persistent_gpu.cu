// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in one
//   launch, with a pruned W_hh whose elements stay in the registers and shared memory of as many multiprocessors as there are;
//   products and sums in float32.
// Layout: as persistent_grid.cu, but for W_hh, in whose place there are
//   places, values [BLOCKS, pairs, BLOCK_THREADS] of a block's elements, as sparse_rows.cuh reads them;
//   slots [BLOCKS, BLOCK_THREADS], where each thread's sums lie, and firsts [BLOCKS, ROWS + 1], where each row's begin unless
//   all have PARTS_A_ROW of them, or of clusters [BLOCKS], how many a block is sent (_sparse_packing.py); and for
//   handoff [tiles of all groups, 2, BLOCKS, PARCELS] of 16 bytes, then [tiles of all groups] of 16 bytes: all 0 before the
//   launch. No two may alias. Alignment: of the element; handoff: 16 bytes; values: 4 bytes.
// Launch: cooperative, all blocks at once: a group of BLOCKS blocks for each TILES tiles of SEQUENCES sequences, which knows no
//   other; block r of a group owns UNITS hidden units from r * UNITS. Of BLOCK_THREADS threads each multiplies elements of one
//   row; GATE_THREADS of them have the states, the others hear what all tell. CLUSTER blocks beside each other divide the columns
//   of their rows (sparse_sent.cuh); more than one only where TILES is 1. Shared bytes: Sparse.shared_bytes.
// Cost: reads the elements once, T B G H values, writes T B H; 2 T B operations an element. Each block reads 4/3 B H values of
//   others a step, and an element's states of SEQUENCES sequences from shared memory.
// Limits: compute capability 8.0; at most 65,536 positions of states; T, B, G * H below 2^30; offsets 64-bit.
// Order: a parcel is written and read as one (grid.cuh), so who sees its number sees it whole. h_(t+1) of a tile takes the place
//   of h_(t-1): who writes it has read all of h_t, and of that each part was written by a block all of whose threads had read
//   all of h_(t-1), the block's barriers lying between. So nobody is still to read what is overwritten, and a reader meets the
//   number it waits for, or that of two steps before, or 0. Without TIMESTAMPS the same holds of the counter in place of numbers.
//   In a block two barriers a tile and step lie between hearing and the product, and between its parts and their sums; who hears
//   goes on to the next parcels then, which take the place of states that the product has read, and writes them down before the
//   next barrier, at which who has the states has read all parts. A wait that takes WATCHDOG_NS is given up by all threads of its
//   block at the second barrier, and in turn by all blocks of the group. Sums are taken in one order: bit-equal repeats.
//   In clusters the wait for parts, and then that for who tells, take the second barrier's place (sparse_sent.cuh).
#define TOLD_EACH 1
#define GROUPS 1
#define SUMS 1
#define SUM_ROWS 1  // they lie elsewhere
#define SUM_COLUMNS 1
#define INPUT_K_TILES 0
#define ELEMENTS_PER_VECTOR (16 / (int)sizeof(scalar_t))
#include "jitter.cuh"

#include "recurrent_gates.cuh"
#define ROW_GATES GATES
#include "sparse_rows.cuh"
#include "sparse_sent.cuh"
#include "gate_step.cuh"

struct Shared {
    States states;
    Own own[TILES];
    Parts parts;
    PointwiseStorage pointwise;
    int is_stuck;  // some thread has given up the wait for what others tell
    Sent sent;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "Sparse.shared_bytes");

// Sums and states of every tile and step, told and written. False where a wait was given up. Threads that have states and those
// that hear run it compiled apart: each has registers for what it needs alone.
template <bool HAS_STATES>
__device__ inline bool find_all(Shared& shared, const KernelArgs& arrays, const unsigned* places, const scalar_t* values,
                                const Handoff& handoff, const ThreadCoords& me, const Route& route) {
    Elements elements(shared.pointwise.weight_storage, places, values);
    const bool is_first_told = arrays.h0;
    const int hearer = me.number - GATE_THREADS;
    const int tiles = tiles_of(me.first_sequence, me.batch), first_tile = me.first_sequence / TILE_BATCH;
    StatePointers walk(arrays, me, tiles);
    GateInputs inputs = {};
    if (HAS_STATES) inputs.load(arrays, walk, 0, 0);
    for (int t = 0; t < arrays.steps; t++) {
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const bool is_last = tile + 1 == tiles, is_heard = t > 0 || is_first_told;
            jitter(t, 0);
            if (!HAS_STATES && is_heard && !hear(shared.states, handoff, first_tile + tile, t + 1, t + is_first_told, hearer))
                *(volatile int*)&shared.is_stuck = 1;
            __syncthreads();
            const bool is_stuck = *(volatile int*)&shared.is_stuck;
            jitter(t, 1);
            float parts[SEQUENCES] = {};
            elements.multiply(parts, shared.pointwise.weight_storage, shared.states);
            if (CLUSTER > 1 && is_stuck) return false;
            shared.sent.put(shared.parts, route, parts, t);
            const Bounds bounds(shared.parts, me.number);
            if (CLUSTER == 1) __syncthreads();
            if (is_stuck) return false;
            jitter(t, 2);
            if (!HAS_STATES) {
                if (TILES == 1) named_barrier_sync(TOLD, BLOCK_THREADS);  // others' states are not there before: who asks is in the way
                continue;
            }
            if (!shared.sent.come(t)) *(volatile int*)&shared.is_stuck = 1;
            const RowSums sums(shared.parts, bounds, me.number, t);
            const auto of_state = [&](int s) { return GateVector{{sums.at[s][0], sums.at[s][1], sums.at[s][2], sums.at[s][3]}}; };
            const GateOperands ready(shared.pointwise, inputs, me, tile, arrays.step(t));
            const StepResult found(shared.pointwise, of_state, ready, me, tile, shared.own[tile], shared.own[tile]);
            jitter(t, 3);
            named_barrier_sync(FOUND, GATE_THREADS);
            jitter(t, 4);
            const bool is_lost = CLUSTER > 1 && *(volatile int*)&shared.is_stuck;
            if (t + 1 < arrays.steps && !is_lost) tell(shared.own[tile], handoff, first_tile + tile, t + 2, me.number);
            if (TILES == 1) named_barrier_arrive(TOLD, BLOCK_THREADS);
            found.write(walk, ready, tile);
            if (t + 1 == arrays.steps) found.write_final(arrays, shared.pointwise, ready, me, tile);
            walk.advance(is_last);
            prefetch_next_inputs(inputs, walk, arrays, tiles, tile, t);
        }
    }
    return CLUSTER == 1 || !*(volatile int*)&shared.is_stuck;
}

extern "C" __global__ void OF_CLUSTERS __launch_bounds__(BLOCK_THREADS, 1) sparse_persistent_forward(
    const scalar_t* gates, index gates_step, index gates_sequence, const unsigned* places, const scalar_t* values, const int* slots,
    const int* firsts, const scalar_t* bias_ih, const scalar_t* bias_hh, const scalar_t* first_h, const scalar_t* first_c,
    scalar_t* output, index output_step, index output_sequence, scalar_t* final_h, scalar_t* final_c, const length* lengths,
    scalar_t* kept, float* cells, index row_step, index row_sequence, uint4* all_told, int* status, int steps, int batch,
    int is_reverse) {
    const KernelArgs arrays = {gates, nullptr, bias_ih, bias_hh, first_h, first_c, output, final_h, final_c, kept, cells,
                           gates_step, gates_sequence, output_step, output_sequence, row_step, row_sequence, steps, is_reverse};
    Shared& shared = *(Shared*)dynamic_smem();
    unsigned own_number = threadIdx.x, own_block = blockIdx.x;
    opaque(own_number), opaque(own_block);  // which would otherwise be asked for anew wherever they are needed
    const int number = own_number, block = own_block;
    const ThreadCoords me = {number, number / 32, number % 32, block % BLOCKS * UNITS, block / BLOCKS * TILES * TILE_BATCH, batch};
    const Handoff handoff(all_told, (batch + TILE_BATCH - 1) / TILE_BATCH, block);
    const bool has_states = number < GATE_THREADS;
    zero_smem(&shared, sizeof(shared.states) + sizeof(shared.own) + sizeof(shared.parts.of_slot));
    shared.is_stuck = 0;
    if (CLUSTER > 1) shared.sent.start(firsts);
    else shared.parts.start(firsts);
    __syncthreads();
    if (has_states) {
        load_biases_and_carry(shared.pointwise, arrays, me, lengths);
        for (int tile = 0; first_h && tile < TILES; tile++) load_own_initial_state(shared.own[tile], arrays, me, tile);
    }
    meet_all();
    for (int tile = 0; first_h && has_states && tile < TILES && me.first_sequence + tile * TILE_BATCH < batch; tile++)
        tell(shared.own[tile], handoff, me.first_sequence / TILE_BATCH + tile, 1, number);
    jitter(-1, 5);
    const Route route = shared.sent.route(shared.parts, slots[block % BLOCKS * BLOCK_THREADS + number]);
    const bool is_whole = has_states ? find_all<true>(shared, arrays, places, values, handoff, me, route)
                                     : find_all<false>(shared, arrays, places, values, handoff, me, route);
    if (CLUSTER > 1) meet_all();  // to whom parts may still be sent
    if (is_whole || !has_states) return;
    *(volatile int*)status = 1;
    write_nan(arrays, me, tiles_of(me.first_sequence, batch));
}
