// A block's pruned rows, its elements' places and values, which stay with its threads: in registers, then in shared memory; their
// product with states of SEQUENCES sequences, in float32; sums of rows. Each thread has elements of one row alone, two a PAIR: HELD
// pairs in registers, SHARED in shared memory, ROW_GATES rows a unit. (_sparse_packing.py says which lie where.)
#pragma once
#include "again.cuh"
#include "sparse_states.cuh"

#define OF_PAIRS (HELD + SHARED)
#define ROWS (ROW_GATES * UNITS)
#define VALUE_WORDS ((int)sizeof(storage) / 2)  // of a pair
#define PAIR_WORDS (1 + VALUE_WORDS)
// Whether there are registers for all pairs' addresses and values, found once: else they are taken apart anew in each step.
#define APART (HELD * 4 <= 48)

// Two positions of 16 bits, the first below, and their values. Positions are counted in units of PLACE_BYTES.
struct Pair {
    unsigned places, values[VALUE_WORDS];
    __device__ unsigned place(int i) const { return i ? places >> 16 : places & 0xffff; }
    __device__ void keep() {
        again(places);
        if (VALUE_WORDS == 1) again(values[0]);
    }
    __device__ float value(int i) const {
        return of_raw(VALUE_WORDS == 2 ? values[i % VALUE_WORDS] : values[0] >> 16 * i & 0xffff);
    }
};

// One position's value of each sequence.
struct alignas(WIDE_BYTES) Wide {
    storage at[SEQUENCES];
};

// Of a block: pairs [SHARED] of each thread, a word of all threads after the other.
struct Room {
    unsigned words[(SHARED > 0 ? SHARED : 1) * PAIR_WORDS * BLOCK_THREADS];
};

// places: [BLOCKS, OF_PAIRS, BLOCK_THREADS]; values likewise, a pair's first value of all threads before its second in float32,
// in 16 bits both beside each other.
struct Elements {
    Pair held[HELD > 0 ? HELD : 1];

    __device__ Elements(Room& room, const unsigned* places, const storage* values) {
        const long long first = (long long)(blockIdx.x % BLOCKS) * OF_PAIRS * BLOCK_THREADS + threadIdx.x;
        const auto word = [&](int pair, int i) {
            const unsigned* of_values = (const unsigned*)values + (first - threadIdx.x) * VALUE_WORDS + threadIdx.x;
            const unsigned* from = i == 0 ? places + first : of_values;
            return from[(i == 0 ? pair : pair * VALUE_WORDS + i - 1) * BLOCK_THREADS];
        };
#pragma unroll
        for (int pair = 0; pair < HELD; pair++) {
            held[pair].places = word(pair, 0);
#pragma unroll
            for (int i = 0; i < VALUE_WORDS; i++) held[pair].values[i] = word(pair, 1 + i);
        }
#pragma unroll 1
        for (int pair = 0; pair < SHARED; pair++)
            for (int i = 0; i < PAIR_WORDS; i++) own(room, pair)[i * BLOCK_THREADS] = word(HELD + pair, i);
    }
    __device__ static unsigned* own(Room& room, int pair) { return room.words + pair * PAIR_WORDS * BLOCK_THREADS + threadIdx.x; }

    // The thread's part of its row's sums.
    __device__ void multiply(float (&sums)[SEQUENCES], Room& room, const States& states) {
#pragma unroll
        for (int pair = 0; pair < HELD; pair++) {
            if (!APART) held[pair].keep();
            add(sums, held[pair], states);
        }
#pragma unroll 4
        for (int pair = 0; pair < SHARED; pair++) {
            const unsigned* words = own(room, pair);
            Pair found;
            found.places = words[0];
#pragma unroll
            for (int i = 0; i < VALUE_WORDS; i++) found.values[i] = words[(1 + i) * BLOCK_THREADS];
            add(sums, found, states);
        }
    }
    __device__ static void add(float (&sums)[SEQUENCES], const Pair& pair, const States& states) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const Wide wide = *(const Wide*)((const char*)states.at + pair.place(i) * PLACE_BYTES);
#pragma unroll
            for (int b = 0; b < SEQUENCES; b++) sums[b] = fmaf(pair.value(i), widen(wide.at[b]), sums[b]);
        }
    }
};

// Threads' sums on their way to their rows'. A row's lie beside each other: PARTS_A_ROW of each, of which some stay 0, one gate's
// rows after another's, and at last what nobody reads; or, where that is 0, from first[row] on.
#define SLOTS (PARTS_A_ROW ? ROWS * PARTS_A_ROW + 1 : BLOCK_THREADS)
struct Parts {
    static constexpr int AT_ONCE = 8;
    float of_slot[SEQUENCES][SLOTS];
    int first[ROWS + 1];

    // firsts: [BLOCKS, ROWS + 1].
    __device__ void start(const int* firsts) {
        for (int i = threadIdx.x; i <= ROWS; i += BLOCK_THREADS) first[i] = firsts[blockIdx.x % BLOCKS * (ROWS + 1) + i];
    }
    __device__ void put(int slot, const float (&sums)[SEQUENCES]) {
#pragma unroll
        for (int b = 0; b < SEQUENCES; b++) of_slot[b][slot] = sums[b];
    }

    // Of a row's slots from `slot` to before `end` every LANES-th, added in one order.
    __device__ float sum(int slot, int end, int b) const {
        float found = 0;
#pragma unroll 1
        for (; slot < end; slot += AT_ONCE * LANES)
            found += sum_of<AT_ONCE>([&](int i) { return slot + i * LANES < end ? of_slot[b][slot + i * LANES] : 0; });
        return found;
    }
    // The same of any row, of which the first is lane's.
    __device__ float sum(int unit, int gate, int lane, int b) const {
        const float* all = &of_slot[b][(gate * UNITS + unit) * PARTS_A_ROW + lane];
        return sum_of<PARTS_A_ROW / LANES>([&](int i) { return all[i * LANES]; });
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
__device__ inline int own_place(int thread, int state) { return thread / LANES + state * AT_A_TIME; }
__device__ inline int own_unit(int thread, int state) { return own_place(thread, state) % UNITS; }
__device__ inline int own_column(int thread, int state) { return thread % LANES ? SEQUENCES : own_place(thread, state) / UNITS; }

// Where the sums of a thread's rows begin and end.
struct Bounds {
    int first[STATES][ROW_GATES], end[STATES][ROW_GATES];
    __device__ Bounds(const Parts& parts, int thread) {
#pragma unroll
        for (int s = 0; s < STATES; s++)
#pragma unroll
            for (int gate = 0; gate < ROW_GATES; gate++) {
                const int row = own_unit(thread, s) * ROW_GATES + gate;
                first[s][gate] = parts.first[row] + thread % LANES, end[s][gate] = parts.first[row + 1];
            }
    }
};

// A thread's rows' sums, the block's parts being there. By whole warps.
struct RowSums {
    float at[STATES][4];
    __device__ RowSums(const Parts& parts, const Bounds& bounds, int thread) {
#pragma unroll
        for (int s = 0; s < STATES; s++) {
            const int b = min(own_place(thread, s) / UNITS, SEQUENCES - 1);
#pragma unroll
            for (int gate = 0; gate < ROW_GATES; gate++) {
                at[s][gate] = PARTS_A_ROW ? parts.sum(own_unit(thread, s), gate, thread % LANES, b)
                                          : parts.sum(bounds.first[s][gate], bounds.end[s][gate], b);
#pragma unroll
                for (int other = 1; other < LANES; other *= 2) at[s][gate] += __shfl_xor_sync(~0u, at[s][gate], other);
            }
        }
    }
};
