// Loads of A fragments of W_hh's transpose from W_hh [G*H, H] as it is in memory. Rows of the product are units, which are
// adjacent there: neighbouring lanes read neighbouring elements. Along K are gates, each of which has a row of W_hh, so a
// thread reads its 16 bytes element by element, those of four fragments at once.
#pragma once
#include "warp_mma.cuh"

constexpr int TRANSPOSED_LOADS_IN_FLIGHT = REG_FRAGMENTS < 4 ? REG_FRAGMENTS : 4;  // fragments

// A row of W_hh; where there is none `unit` is HIDDEN or more.
struct WeightRow {
    int gate, unit;
};

// Packs the bits of 16 bytes of elements.
__device__ inline uint4 pack_words(const unsigned (&raw)[ELEMENTS_PER_VECTOR]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        words[i] = ELEMENTS_PER_VECTOR == 4 ? raw[i]
                                            : raw[i * 2 % ELEMENTS_PER_VECTOR] + (raw[(i * 2 + 1) % ELEMENTS_PER_VECTOR] << 16);
    return {words[0], words[1], words[2], words[3]};
}

// Loads units u and u + 8; from `end` on, where the sums are not needed, the unit before it. row_at(i): row of the thread's
// i-th element, i a multiple of VECTOR. VECTOR elements are of one gate and of adjacent units, the first of which is a multiple
// of VECTOR.
template <int VECTOR, typename RowAt>
__device__ inline AFragment load_a_transposed(const scalar_t* weight, int u, int end, RowAt row_at) {
    const int of_upper = min(u, end - 1), of_lower = min(u + 8, end - 1);
    unsigned upper[ELEMENTS_PER_VECTOR], lower[ELEMENTS_PER_VECTOR];
#pragma unroll
    for (int first = 0; first < ELEMENTS_PER_VECTOR; first += VECTOR) {
        const WeightRow row = row_at(first);
        const scalar_t* weight_row = weight + (long long)(row.gate * HIDDEN + row.unit) * HIDDEN;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const bool is_inside = row.unit + (HIDDEN % VECTOR ? i : 0) < HIDDEN;
            upper[first + i] = is_inside ? raw_bits(weight_row[of_upper + i * HIDDEN]) : 0;
            lower[first + i] = is_inside ? raw_bits(weight_row[of_lower + i * HIDDEN]) : 0;
        }
    }
    return make_a_fragment(pack_words(upper), pack_words(lower));
}
