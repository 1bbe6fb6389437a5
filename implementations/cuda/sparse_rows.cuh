// A block's pruned rows, its elements' places and values, which stay with its threads: in registers, then in shared memory; their
// product with states of SEQUENCES sequences, in float32. Each thread has elements of one row alone, two a PAIR: HELD pairs in
// registers, SHARED in shared memory. (_sparse_packing.py says which lie where.)
#pragma once
#include "again.cuh"
#include "sparse_states.cuh"

#define OF_PAIRS (HELD + SHARED)
#define VALUE_WORDS ((int)sizeof(scalar_t) / 2)  // of a pair
#define PAIR_WORDS (1 + VALUE_WORDS)
// Whether there are registers for all pairs' addresses and values, found once: else they are taken apart anew in each step.
#define APART (HELD * 4 <= 48)

// Two positions of 16 bits, the first below, and their values. Positions are counted in units of PLACE_BYTES.
struct Pair {
    unsigned places, values[VALUE_WORDS];
    __device__ unsigned place(int i) const { return i ? places >> 16 : places & 0xffff; }
    __device__ void keep() {
        opaque(places);
        if (VALUE_WORDS == 1) opaque(values[0]);
    }
    __device__ float value(int i) const {
        return widen_bits(VALUE_WORDS == 2 ? values[i % VALUE_WORDS] : values[0] >> 16 * i & 0xffff);
    }
};

// One position's value of each sequence.
struct alignas(WIDE_BYTES) Wide {
    scalar_t at[SEQUENCES];
};

// Of a block: pairs [SHARED] of each thread, a word of all threads after the other.
struct WeightStorage {
    unsigned words[(SHARED > 0 ? SHARED : 1) * PAIR_WORDS * BLOCK_THREADS];
};

// places: [BLOCKS, OF_PAIRS, BLOCK_THREADS]; values likewise, a pair's first value of all threads before its second in float32,
// in 16 bits both beside each other.
struct Elements {
    Pair held[HELD > 0 ? HELD : 1];

    __device__ Elements(WeightStorage& room, const unsigned* places, const scalar_t* values) {
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
    __device__ static unsigned* own(WeightStorage& room, int pair) { return room.words + pair * PAIR_WORDS * BLOCK_THREADS + threadIdx.x; }

    // The thread's part of its row's sums.
    __device__ void multiply(float (&sums)[SEQUENCES], WeightStorage& room, const States& states) {
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
