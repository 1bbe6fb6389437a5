// Threads' parts of rows' sums on their way to who needs the sums. A row's lie beside each other: PARTS_A_ROW of each, of which some
// stay 0, one gate's rows after another's, and at last what nobody reads; or, where that is 0, from first[row] on. What other blocks
// of a cluster send has two buffers, which take turns (sparse_sent.cuh).
#pragma once
#include "sparse_states.cuh"

#define ROWS (ROW_GATES * UNITS)
#define SLOTS (PARTS_A_ROW ? ROWS * PARTS_A_ROW + 1 : BLOCK_THREADS)
#define BUFFERS (CLUSTER > 1 ? 2 : 1)

struct alignas(CLUSTER > 1 ? 16 : 4) Parts {
    static constexpr int AT_ONCE = 8, FROM_SLOT_TO_SLOT = CLUSTER > 1 ? SEQUENCES : 1;
    float of_slot[CLUSTER > 1 ? BUFFERS : SEQUENCES][CLUSTER > 1 ? (SLOTS * SEQUENCES + 3) / 4 * 4 : SLOTS];
    int first[ROWS + 1];

    // firsts: [BLOCKS, ROWS + 1].
    __device__ void start(const int* firsts) {
        for (int i = threadIdx.x; i <= ROWS; i += BLOCK_THREADS) first[i] = firsts[blockIdx.x % BLOCKS * (ROWS + 1) + i];
    }
    __device__ void put(int slot, const float (&sums)[SEQUENCES]) {
#pragma unroll
        for (int b = 0; b < SEQUENCES; b++) *at(slot, b) = sums[b];
    }
    // What is sent lies as it is sent, all sequences of a part beside each other.
    __device__ float* at(int slot, int b, unsigned turn = 0) {
        return CLUSTER > 1 ? &of_slot[turn % BUFFERS][slot * SEQUENCES + b] : &of_slot[b][slot];
    }
    __device__ const float* at(int slot, int b, unsigned turn = 0) const { return const_cast<Parts*>(this)->at(slot, b, turn); }

    // Of a row's slots from `slot` to before `end` every LANES-th, added in one order.
    __device__ float sum(int slot, int end, int b) const {
        float found = 0;
#pragma unroll 1
        for (; slot < end; slot += AT_ONCE * LANES)
            found += sum_of<AT_ONCE>([&](int i) { return slot + i * LANES < end ? *at(slot + i * LANES, b) : 0; });
        return found;
    }
    // The same of any row, of which the first is lane's.
    __device__ float sum(int unit, int gate, int lane, int b, unsigned turn) const {
        const float* all = at((gate * UNITS + unit) * PARTS_A_ROW + lane, b, turn);
        return sum_of<PARTS_A_ROW / LANES>([&](int i) { return all[i * LANES * FROM_SLOT_TO_SLOT]; });
    }
    template <int COUNT, typename Part> __device__ static float sum_of(Part part) {
        float some[COUNT > 0 ? COUNT : 1];
#pragma unroll
        for (int i = 0; i < COUNT; i++) some[i] = part(i);
#pragma unroll
        for (int apart = 1; apart < COUNT; apart *= 2)
#pragma unroll
            for (int i = 0; i + apart < COUNT; i += 2 * apart) some[i] += some[i + apart];
        return some[0];
    }
};

// Who has states: GATE_THREADS threads, LANES beside each other for each, of which the first goes on when its sums are found.
#define AT_A_TIME (GATE_THREADS / LANES)
// Units lie beside each other, or, as parts of a cluster's do, sequences.
__device__ inline int own_place(int thread, int state) { return thread / LANES + state * AT_A_TIME; }
__device__ inline int unit_of_state(int thread, int state) {
    return (CLUSTER > 1 ? own_place(thread, state) / SEQUENCES : own_place(thread, state)) % UNITS;
}
__device__ inline int sum_column(int thread, int state) {
    const int place = own_place(thread, state);
    return CLUSTER > 1 && place < UNITS * SEQUENCES ? place % SEQUENCES : place / UNITS;
}
__device__ inline int sequence_of_state(int thread, int state) { return thread % LANES ? SEQUENCES : sum_column(thread, state); }

// Where the sums of a thread's rows begin and end.
struct Bounds {
    int first[STATES_PER_THREAD][ROW_GATES], end[STATES_PER_THREAD][ROW_GATES];
    __device__ Bounds(const Parts& parts, int thread) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++)
#pragma unroll
            for (int gate = 0; gate < ROW_GATES; gate++) {
                const int row = unit_of_state(thread, s) * ROW_GATES + gate;
                first[s][gate] = parts.first[row] + thread % LANES, end[s][gate] = parts.first[row + 1];
            }
    }
};

// A thread's rows' sums, the block's parts being there. By whole warps.
struct RowSums {
    float at[STATES_PER_THREAD][4];
    __device__ RowSums(const Parts& parts, const Bounds& bounds, int thread, unsigned turn) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const int b = min(sum_column(thread, s), SEQUENCES - 1);
#pragma unroll
            for (int gate = 0; gate < ROW_GATES; gate++) {
                at[s][gate] = PARTS_A_ROW ? parts.sum(unit_of_state(thread, s), gate, thread % LANES, b, turn)
                                          : parts.sum(bounds.first[s][gate], bounds.end[s][gate], b);
#pragma unroll
                for (int other = 1; other < LANES; other *= 2) at[s][gate] += __shfl_xor_sync(~0u, at[s][gate], other);
            }
        }
    }
};
