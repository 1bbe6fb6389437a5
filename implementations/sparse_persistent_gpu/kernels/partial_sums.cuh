// Partial sums of rows, in slots of shared memory: each thread stores its own, and the threads that have the row's states read
// them. A row's slots are adjacent: PARTS_A_ROW of each row, of which some stay 0, one gate's rows after another's, and at last
// a slot that is never read; or, where PARTS_A_ROW is 0, from row_offsets[row] on. In clusters there are two buffers, which
// alternate (cluster_reduce.cuh).
#pragma once
#include "state_exchange.cuh"

constexpr int BUFFERS = CLUSTER > 1 ? 2 : 1;

// Of ROW_GATES rows of each of the block's units.
template <int ROW_GATES> struct alignas(CLUSTER > 1 ? 16 : 4) PartialSums {
    static constexpr int ROWS = ROW_GATES * UNITS, SLOTS = PARTS_A_ROW ? ROWS * PARTS_A_ROW + 1 : BLOCK_THREADS;
    static constexpr int IN_FLIGHT = 8, SLOT_STRIDE = CLUSTER > 1 ? SEQUENCES : 1;
    float slots[CLUSTER > 1 ? BUFFERS : SEQUENCES][CLUSTER > 1 ? (SLOTS * SEQUENCES + 3) / 4 * 4 : SLOTS];
    int row_offsets[ROWS + 1];

    // offsets: [BLOCKS, ROWS + 1].
    __device__ void load_row_offsets(const int* offsets) {
        for (int i = threadIdx.x; i <= ROWS; i += BLOCK_THREADS) row_offsets[i] = offsets[blockIdx.x % BLOCKS * (ROWS + 1) + i];
    }
    __device__ void store(int slot, const float (&sums)[SEQUENCES]) {
#pragma unroll
        for (int b = 0; b < SEQUENCES; b++) *ptr(slot, b) = sums[b];
    }
    // In clusters all sequences of a partial sum are adjacent.
    __device__ float* ptr(int slot, int b, unsigned iteration = 0) {
        return CLUSTER > 1 ? &slots[iteration % BUFFERS][slot * SEQUENCES + b] : &slots[b][slot];
    }
    __device__ const float* ptr(int slot, int b, unsigned iteration = 0) const {
        return const_cast<PartialSums*>(this)->ptr(slot, b, iteration);
    }

    // The sum of every LANES-th of a row's slots from `slot` to before `end`, in one order.
    __device__ float sum(int slot, int end, int b) const {
        float result = 0;
#pragma unroll 1
        for (; slot < end; slot += IN_FLIGHT * LANES)
            result += tree_sum<IN_FLIGHT>([&](int i) { return slot + i * LANES < end ? *ptr(slot + i * LANES, b) : 0; });
        return result;
    }
    // The same where each row has PARTS_A_ROW slots, from the lane's first one on.
    __device__ float sum(int unit, int gate, int lane, int b, unsigned iteration) const {
        const float* first_term = ptr((gate * UNITS + unit) * PARTS_A_ROW + lane, b, iteration);
        return tree_sum<PARTS_A_ROW / LANES>([&](int i) { return first_term[i * LANES * SLOT_STRIDE]; });
    }
    template <int COUNT, typename Term> __device__ static float tree_sum(Term term) {
        float terms[COUNT > 0 ? COUNT : 1];
#pragma unroll
        for (int i = 0; i < COUNT; i++) terms[i] = term(i);
#pragma unroll
        for (int distance = 1; distance < COUNT; distance *= 2)
#pragma unroll
            for (int i = 0; i + distance < COUNT; i += 2 * distance) terms[i] += terms[i + distance];
        return terms[0];
    }
};

// Config of tiles of SEQUENCES sequences. The pointwise threads reduce the sums of the states. LANES adjacent ones reduce a
// state's sums; the first has the state. Adjacent states are of adjacent units, or in clusters, as partial sums are sent, of
// adjacent sequences.
struct LaneConfig {
    static constexpr int TILE_BATCH = SEQUENCES, NUM_POINTWISE_THREADS = POINTWISE_THREADS;
    static constexpr int STATES_PER_THREAD = ceil_div(UNITS * SEQUENCES * LANES, POINTWISE_THREADS);
    static constexpr bool HAS_FUSED_INPUTS = false;
    __device__ static int state_index(int thread, int state) { return thread / LANES + state * (POINTWISE_THREADS / LANES); }
    __device__ static int unit_of_state(int thread, int state) {
        return (CLUSTER > 1 ? state_index(thread, state) / SEQUENCES : state_index(thread, state)) % UNITS;
    }
    __device__ static int sequence_of_sum(int thread, int state) {
        const int index = state_index(thread, state);
        return CLUSTER > 1 && index < UNITS * SEQUENCES ? index % SEQUENCES : index / UNITS;
    }
    __device__ static int sequence_of_state(int thread, int state) {
        return thread % LANES ? SEQUENCES : sequence_of_sum(thread, state);
    }
};
constexpr int STATES_PER_THREAD = LaneConfig::STATES_PER_THREAD;

// The ranges of slots of a thread's rows.
template <int ROW_GATES> struct RowRanges {
    int begin[STATES_PER_THREAD][ROW_GATES], end[STATES_PER_THREAD][ROW_GATES];
    __device__ RowRanges(const PartialSums<ROW_GATES>& partial_sums, int thread) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++)
#pragma unroll
            for (int gate = 0; gate < ROW_GATES; gate++) {
                const int row = LaneConfig::unit_of_state(thread, s) * ROW_GATES + gate;
                begin[s][gate] = partial_sums.row_offsets[row] + thread % LANES;
                end[s][gate] = partial_sums.row_offsets[row + 1];
            }
    }
};

// The sums of a thread's rows, once the block's partial sums are complete. By whole warps.
template <int ROW_GATES> struct RowSums {
    float data[STATES_PER_THREAD][4];
    __device__ RowSums(const PartialSums<ROW_GATES>& partial_sums, const RowRanges<ROW_GATES>& ranges, int thread,
                       unsigned iteration) {
#pragma unroll
        for (int s = 0; s < STATES_PER_THREAD; s++) {
            const int unit = LaneConfig::unit_of_state(thread, s);
            const int b = min(LaneConfig::sequence_of_sum(thread, s), SEQUENCES - 1);
#pragma unroll
            for (int gate = 0; gate < ROW_GATES; gate++) {
                data[s][gate] = PARTS_A_ROW ? partial_sums.sum(unit, gate, thread % LANES, b, iteration)
                                            : partial_sums.sum(ranges.begin[s][gate], ranges.end[s][gate], b);
#pragma unroll
                for (int mask = 1; mask < LANES; mask *= 2) data[s][gate] += __shfl_xor_sync(~0u, data[s][gate], mask);
            }
        }
    }
};
