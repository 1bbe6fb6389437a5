// A thread's part of W_hh's transpose, gathered from W_hh [G*H, H] as it lies in memory. Rows of the product are units, which
// lie beside each other there: neighbouring lanes read neighbouring elements. Along a row go gates, each of which has a row of
// W_hh, so that a thread reads its 16 bytes element by element, those of four parts at once.
#pragma once
#include "warp_product.cuh"

#define READ_AT_ONCE (HELD < 4 ? HELD : 4)  // parts

// A row of W_hh; of no row `unit` is HIDDEN or more.
struct Gate {
    int gate, unit;
};

// 16 bytes of elements as they were read.
__device__ inline uint4 packed(const unsigned (&raw)[PIECE]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = PIECE == 4 ? raw[i] : raw[i * 2 % PIECE] + (raw[(i * 2 + 1) % PIECE] << 16);
    return {words[0], words[1], words[2], words[3]};
}

// Of units u and u + 8; from `end` on, where nobody needs the sums, of the unit before it. gate_of(i): of the thread's i-th
// element, i a multiple of BESIDE: so many are of one gate and of units beside each other, from a multiple of BESIDE on.
template <int BESIDE, typename GateOf>
__device__ inline Slice gathered(const storage* weight, int u, int end, GateOf gate_of) {
    const int of_upper = min(u, end - 1), of_lower = min(u + 8, end - 1);
    unsigned upper[PIECE], lower[PIECE];
#pragma unroll
    for (int first = 0; first < PIECE; first += BESIDE) {
        const Gate found = gate_of(first);
        const storage* row = weight + (long long)(found.gate * HIDDEN + found.unit) * HIDDEN;
#pragma unroll
        for (int i = 0; i < BESIDE; i++) {
            const bool is_there = found.unit + (HIDDEN % BESIDE ? i : 0) < HIDDEN;
            upper[first + i] = is_there ? raw_of(row[of_upper + i * HIDDEN]) : 0;
            lower[first + i] = is_there ? raw_of(row[of_lower + i * HIDDEN]) : 0;
        }
    }
    return slice_of(packed(upper), packed(lower));
}
