// A block's pruned rows: column indices and values of their non-zeros, resident in registers and then in shared memory, and
// their product with states of SEQUENCES sequences, in float32. A thread has non-zeros of one row alone, in packed pairs:
// REG_PAIRS pairs in registers, SMEM_PAIRS in shared memory (packing.py assigns them).
#pragma once
#include "ecornn/ptx/opaque.cuh"
#include "state_exchange.cuh"

constexpr int PAIRS_PER_THREAD = REG_PAIRS + SMEM_PAIRS;
constexpr int VALUE_WORDS = (int)sizeof(scalar_t) / 2, PAIR_WORDS = 1 + VALUE_WORDS;  // of a pair
// Whether registers suffice for all pairs' addresses and values, unpacked once: else pairs are unpacked anew in each step.
constexpr bool UNPACK_ONCE = REG_PAIRS * 4 <= 48;

// Two column indices of 16 bits, the first in the low half, and their values. An index counts units of PLACE_BYTES.
struct PackedPair {
    unsigned col_indices, values[VALUE_WORDS];
    __device__ unsigned col_index(int i) const { return i ? col_indices >> 16 : col_indices & 0xffff; }
    __device__ void make_opaque() {
        opaque(col_indices);
        if (VALUE_WORDS == 1) opaque(values[0]);
    }
    __device__ float value(int i) const {
        return widen_bits(VALUE_WORDS == 2 ? values[i % VALUE_WORDS] : values[0] >> 16 * i & 0xffff);
    }
};

// One position's value of each sequence.
struct alignas(POSITION_BYTES) PositionVector {
    scalar_t data[SEQUENCES];
};

// A block's pairs in shared memory, SMEM_PAIRS for each thread: one word of all threads after the other.
struct WeightStorage {
    unsigned words[(SMEM_PAIRS > 0 ? SMEM_PAIRS : 1) * PAIR_WORDS * BLOCK_THREADS];
};

// col_indices: [BLOCKS, PAIRS_PER_THREAD, BLOCK_THREADS]; values likewise. In float32 the first values of all threads' pairs
// come before the second ones; in 16 bits a pair's two values are adjacent.
struct NonZeros {
    PackedPair reg_pairs[REG_PAIRS > 0 ? REG_PAIRS : 1];

    __device__ NonZeros(WeightStorage& room, const unsigned* col_indices, const scalar_t* values) {
        const long long first = (long long)(blockIdx.x % BLOCKS) * PAIRS_PER_THREAD * BLOCK_THREADS + threadIdx.x;
        const auto load_word = [&](int pair, int i) {
            const unsigned* value_words = (const unsigned*)values + (first - threadIdx.x) * VALUE_WORDS + threadIdx.x;
            const unsigned* source = i == 0 ? col_indices + first : value_words;
            return source[(i == 0 ? pair : pair * VALUE_WORDS + i - 1) * BLOCK_THREADS];
        };
#pragma unroll
        for (int pair = 0; pair < REG_PAIRS; pair++) {
            reg_pairs[pair].col_indices = load_word(pair, 0);
#pragma unroll
            for (int i = 0; i < VALUE_WORDS; i++) reg_pairs[pair].values[i] = load_word(pair, 1 + i);
        }
#pragma unroll 1
        for (int pair = 0; pair < SMEM_PAIRS; pair++)
            for (int i = 0; i < PAIR_WORDS; i++)
                smem_words_of_pair(room, pair)[i * BLOCK_THREADS] = load_word(REG_PAIRS + pair, i);
    }
    __device__ static unsigned* smem_words_of_pair(WeightStorage& room, int pair) {
        return room.words + pair * PAIR_WORDS * BLOCK_THREADS + threadIdx.x;
    }

    // Adds the thread's products to its partial sums of its row.
    template <typename States>
    __device__ void multiply(float (&sums)[SEQUENCES], WeightStorage& room, const States& states) {
#pragma unroll
        for (int pair = 0; pair < REG_PAIRS; pair++) {
            if (!UNPACK_ONCE) reg_pairs[pair].make_opaque();
            add_products(sums, reg_pairs[pair], states);
        }
#pragma unroll 4
        for (int pair = 0; pair < SMEM_PAIRS; pair++) {
            const unsigned* words = smem_words_of_pair(room, pair);
            PackedPair packed;
            packed.col_indices = words[0];
#pragma unroll
            for (int i = 0; i < VALUE_WORDS; i++) packed.values[i] = words[(1 + i) * BLOCK_THREADS];
            add_products(sums, packed, states);
        }
    }
    template <typename States>
    __device__ static void add_products(float (&sums)[SEQUENCES], const PackedPair& pair, const States& states) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const PositionVector vector = *(const PositionVector*)((const char*)states.data + pair.col_index(i) * PLACE_BYTES);
#pragma unroll
            for (int b = 0; b < SEQUENCES; b++) sums[b] = fmaf(pair.value(i), widen(vector.data[b]), sums[b]);
        }
    }
};
