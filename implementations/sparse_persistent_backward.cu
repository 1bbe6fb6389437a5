// Maths: the backward pass of sparse_persistent_gpu.cu, CELL, all T steps of one layer and direction in one launch: each block
//   multiplies the gradients of all gates by the rows of W_hh^T of its own units, whose elements stay with it.
// Layout: as persistent_grid_backward.cu, but for W_hh, in whose place there are places, values, slots and firsts as in
//   sparse_persistent_gpu.cu, of W_hh^T, whose columns are a unit's gates beside each other; and for
//   handoff, as in sparse_persistent_gpu.cu: the gradients of a block's gates, the number i + 1 in the i-th step backward.
//   No two may alias. Alignment: of the element; handoff: 16 bytes; values: 4 bytes.
// Launch: as sparse_persistent_gpu.cu.
// Cost: reads the elements once, T B values a unit as persistent_grid_backward.cu; 2 T B operations an element. Each block reads
//   4/3 B G H values of others a step.
// Limits: as sparse_persistent_gpu.cu; positions are G * H.
// Order: as sparse_persistent_gpu.cu, gradients of step i + 2 taking the place of those of i.
#define THREADS GATE_THREADS  // that have the states
#define TOLD_EACH GATES
#define ROW_GATES 1
#include "jitter.cuh"

#include "sparse_rows.cuh"
#include "sparse_sent.cuh"

struct ThreadCoords {
    int number, first_unit, first_sequence, batch;
    __device__ int local_unit(int state) const { return unit_of_state(number, state); }
    __device__ int sequence_in_tile(int state) const { return sequence_of_state(number, state); }
    __device__ int unit(int state) const { return first_unit + local_unit(state); }
    __device__ int sequence(int tile, int state) const { return first_sequence + tile * TILE_BATCH + sequence_in_tile(state); }
    __device__ bool is_inside(int tile, int state) const {
        return sequence_in_tile(state) < TILE_BATCH && unit(state) < HIDDEN && sequence(tile, state) < batch;
    }
};

#include "backward_step.cuh"

struct Shared {
    States states;  // gates' gradients of all units
    Own own;
    Parts parts;
    GradientCarry carried;
    WeightStorage room;
    int is_stuck;  // some thread has given up the wait for what others tell
    Sent sent;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "Sparse.shared_bytes");

// The i-th step backward of a thread's own units of a tile; then what is left of d_h. sums: of the step before.
__device__ inline void step_units(Shared& shared, const KernelArgs& arrays, const GateInputs& inputs, const RowSums& sums, const ThreadCoords& me,
                                  int tile, int i) {
#pragma unroll
    for (int s = 0; s < STATES_PER_THREAD; s++) {
        if (me.sequence_in_tile(s) >= TILE_BATCH) continue;
        const float d_h = shared.carried.d_h[tile][s][me.number] + sums.at[s][0];
        if (i == arrays.steps) {
            store_initial_state_gradients(shared.carried, arrays, me, tile, s, d_h);
            continue;
        }
        const int end = shared.carried.ends[tile][me.sequence_in_tile(s)];
        const bool is_alive = me.is_inside(tile, s) && arrays.time(i) < end;
        const LocalGradients slopes = inputs.local_gradients(arrays, me, tile, s, arrays.time(i + 1), end);
        const float all_d_h = d_h + (is_alive ? widen_bits(inputs.d_output[s]) : 0);
        pointwise_backward(shared.carried, arrays, slopes, me, tile, s, i, all_d_h,
             [&](int gate, scalar_t found) { shared.own.at(me.unit(s), me.sequence_in_tile(s), gate) = found; });
    }
}

// All that has states does in a step: what is read for it, found, and told.
__device__ inline void take_step(Shared& shared, const KernelArgs& arrays, const Handoff& handoff, const GateInputs& inputs,
                                 const RowSums& sums, const ThreadCoords& me, int tile, int i) {
    step_units(shared, arrays, inputs, sums, me, tile, i);
    named_barrier_sync(FOUND, GATE_THREADS);
    jitter(i, 4);
    const bool is_lost = CLUSTER > 1 && *(volatile int*)&shared.is_stuck;
    if (i < arrays.steps && !is_lost) tell(shared.own, handoff, me.first_sequence / TILE_BATCH + tile, i + 1, me.number);
    if (TILES == 1) named_barrier_arrive(TOLD, BLOCK_THREADS);
    if (i + 1 < arrays.steps) GateInputs::prefetch(arrays, me, tile, i + 1);
}

// All steps of all tiles. False where a wait was given up. Threads that have states and those that hear run it compiled apart: each
// has registers for what it needs alone.
template <bool HAS_STATES>
__device__ inline bool find_all(Shared& shared, const KernelArgs& arrays, const unsigned* places, const scalar_t* values,
                                const Handoff& handoff, const ThreadCoords& me, const Route& route) {
    Elements elements(shared.room, places, values);
    const int tiles = tiles_of(me.first_sequence, me.batch);
    for (int i = 0; i <= arrays.steps; i++) {
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            GateInputs inputs = {};
            if (HAS_STATES && i < arrays.steps) inputs.load(arrays, me, tile, i);
            jitter(i, 0);
            bool is_stuck = false;
            if (i > 0) {
                if (!HAS_STATES && !hear(shared.states, handoff, me.first_sequence / TILE_BATCH + tile, i, i, me.number - GATE_THREADS))
                    *(volatile int*)&shared.is_stuck = 1;
                __syncthreads();
                is_stuck = *(volatile int*)&shared.is_stuck;
                jitter(i, 1);
                float parts[SEQUENCES] = {};
                elements.multiply(parts, shared.room, shared.states);
                if (CLUSTER > 1 && is_stuck) return false;
                shared.sent.put(shared.parts, route, parts, i - 1);
            }
            const Bounds bounds(shared.parts, me.number);
            if (CLUSTER == 1) __syncthreads();
            if (is_stuck) return false;
            jitter(i, 2);
            if (HAS_STATES && i > 0 && !shared.sent.come(i - 1)) *(volatile int*)&shared.is_stuck = 1;
            if (HAS_STATES) take_step(shared, arrays, handoff, inputs, RowSums(shared.parts, bounds, me.number, i - 1), me, tile, i);
            else if (TILES == 1) named_barrier_sync(TOLD, BLOCK_THREADS);  // others' gradients are not there before
        }
    }
    return CLUSTER == 1 || !*(volatile int*)&shared.is_stuck;
}

extern "C" __global__ void OF_CLUSTERS __launch_bounds__(BLOCK_THREADS, 1) sparse_persistent_backward(
    const scalar_t* kept, const float* cells, index row_step, index row_sequence, const scalar_t* output, index output_step,
    index output_sequence, const unsigned* places, const scalar_t* values, const int* slots, const int* firsts,
    const scalar_t* first_h, const scalar_t* first_c, const scalar_t* d_output, index d_output_step, index d_output_sequence,
    const scalar_t* d_final_h, const scalar_t* d_final_c, scalar_t* d_gates, scalar_t* d_product, scalar_t* d_first_h,
    scalar_t* d_first_c, const length* lengths, uint4* all_told, int* status, int steps, int batch, int is_reverse) {
    Shared& shared = *(Shared*)dynamic_smem();
    unsigned own_number = threadIdx.x, own_block = blockIdx.x;
    opaque(own_number), opaque(own_block);  // which would otherwise be asked for anew wherever they are needed
    const int number = own_number, block = own_block;
    const ThreadCoords me = {number, block % BLOCKS * UNITS, block / BLOCKS * TILES * TILE_BATCH, batch};
    const KernelArgs arrays = {{output, output_step, output_sequence}, {d_output, d_output_step, d_output_sequence}, kept, nullptr,
                           first_h, first_c, d_final_h, d_final_c, cells, d_gates, d_product, d_first_h, d_first_c,
                           row_step, row_sequence, steps, is_reverse};
    const Handoff handoff(all_told, (batch + TILE_BATCH - 1) / TILE_BATCH, block);
    zero_smem(&shared, sizeof(States) + sizeof(Own) + sizeof(shared.parts.of_slot));
    shared.is_stuck = 0;
    if (CLUSTER > 1) shared.sent.start(firsts);
    else shared.parts.start(firsts);
    __syncthreads();
    if (number < GATE_THREADS) shared.carried.load(arrays, me, lengths);
    meet_all();
    const Route route = shared.sent.route(shared.parts, slots[block % BLOCKS * BLOCK_THREADS + number]);
    const bool is_whole = number < GATE_THREADS ? find_all<true>(shared, arrays, places, values, handoff, me, route)
                                                : find_all<false>(shared, arrays, places, values, handoff, me, route);
    if (CLUSTER > 1) meet_all();  // to whom parts may still be sent
    if (is_whole || number >= GATE_THREADS) return;
    *(volatile int*)status = 1;
    for (int tile = 0; tile < tiles_of(me.first_sequence, batch); tile++) write_nan(arrays, me, tile);
}
