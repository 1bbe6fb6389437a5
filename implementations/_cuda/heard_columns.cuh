// How a grid's blocks tell each other of their states, in parcels (parcels.cuh) that are each what one lane is to have of a
// product's columns (warp_product.cuh): what is told goes from the L2 cache to the tensor cores by way of registers alone.
// A block tells of each sequence its units in PER_BLOCK parcels, the last filled up. Of all blocks' parcels of a sequence four
// beside each other are for a warp's lanes t, A_LANE times; then come the next warp's. What is no unit has no weight. Of 8
// sequences, which are the lanes' g, parcels of one number lie beside each other.
#pragma once
#include "warp_product.cuh"

#define GROUPS 8
#define SCARCE 1
#define READ_AT_ONCE (HELD < 4 ? HELD : 4)
#define WORDS_EACH (OF_TF32 ? 6 : 3)                      // of a parcel
#define UNITS_EACH (WORDS_EACH * 4 / (int)sizeof(storage))   // of a parcel
#define PER_BLOCK ((UNITS + UNITS_EACH - 1) / UNITS_EACH)    // parcels
#define OF_ALL (BLOCKS * PER_BLOCK)                          // parcels of a sequence
#define A_LANE ((OF_ALL + 4 * GROUPS - 1) / (4 * GROUPS))    // parcels of a sequence
#define SLICES_EACH ((A_LANE * WORDS_EACH + 3) / 4)          // of a warp
#define AT_HAND (PARCELS_AT_ONCE < A_LANE ? PARCELS_AT_ONCE : A_LANE)  // parcels of a sequence that a lane has at once, at least 2
#define WAITED (AT_HAND == A_LANE ? A_LANE : OF_TF32 && AT_HAND == 2 ? 2 : 1)  // of these, that it waits for at once
#define OF_EIGHT (A_LANE * 4 * GROUPS * 8)  // places for parcels of 8 sequences
#define OF_WARP ((SEQUENCES * PER_BLOCK + GROUPS - 1) / GROUPS)  // parcels of the block's own, of a tile
#define STATES ((OF_WARP * UNITS_EACH + 31) / 32)                // of a thread in a tile

// A warp finds the states that it tells, one parcel's after the other's.
__device__ inline int own_parcel(int thread, int state) { return thread / 32 * OF_WARP + (thread % 32 + state * 32) / UNITS_EACH; }
__device__ inline int unit_in_block(int thread, int state) {
    return own_parcel(thread, state) / SEQUENCES * UNITS_EACH + (thread % 32 + state * 32) % UNITS_EACH;
}
__device__ inline int own_unit(int thread, int state) { return unit_in_block(thread, state) % UNITS; }
__device__ inline int own_column(int thread, int state) {
    const bool is_one = thread % 32 + state * 32 < OF_WARP * UNITS_EACH && unit_in_block(thread, state) < UNITS;
    return is_one ? own_parcel(thread, state) % SEQUENCES : 8 * ABREAST;
}

#include "persistent_step.cuh"

#include "parcels.cuh"

static_assert(AT_HAND == A_LANE || AT_HAND >= 2, "a slice may have words of two parcels");
typedef Parcel<OF_TF32> parcel;

// The states of a block's own units in a tile, as they are told: by each warp those that it finds.
struct Own {
    unsigned words[WIDE][PER_BLOCK * WORDS_EACH];
    __device__ storage& of(unsigned unit, unsigned column) { return ((storage*)words[column])[unit % UNITS]; }

    // handoff: of the tile and step.
    __device__ void tell(uint4* handoff, const Thread& me, unsigned number) const {
        for (int i = me.lane; i < OF_WARP; i += 32) {
            const int own = me.warp * OF_WARP + i, part = own / SEQUENCES, column = own % SEQUENCES;
            uint4* place = handoff + column / 8 * OF_EIGHT + (me.first_unit / UNITS * PER_BLOCK + part) * 8 + column % 8;
            if (part < PER_BLOCK) publish(place, parcel::pack(words[column] + part * WORDS_EACH, number));
        }
    }
};

// Where a lane's k-th parcel is among all of a sequence.
__device__ inline int at_of(const Thread& me, int k) { return (me.warp * A_LANE + k) * 4 + me.lane % 4; }

// The weights of a row that a lane's j-th word of columns meets.
__device__ inline unsigned weights_at(const MatrixRow& row, const Thread& me, int j) {
    constexpr int EACH = 4 / sizeof(storage);  // of a word
    const int at = at_of(me, j / WORDS_EACH), local = at % PER_BLOCK * UNITS_EACH + j % WORDS_EACH * EACH;
    const int unit = at / PER_BLOCK * UNITS + local, units = min(UNITS - local, HIDDEN - unit);
    if (!row.is_inside || j >= A_LANE * WORDS_EACH || at >= OF_ALL || units <= 0) return 0;
    if (EACH == 1 || WIDTH >= 4 && UNITS % 2 == 0) return *(const unsigned*)(row.start + unit);
    return raw_of(row.start[unit]) | (units > 1 ? raw_of(row.start[unit + 1]) << 16 : 0);
}

__device__ inline Slice heard_part_of(const storage* weight, const Thread& me, int s, int i) {
    const int r = i * 16 + me.lane / 4;
    const MatrixRow upper = row_of(weight, me, r, HIDDEN), lower = row_of(weight, me, r + 8, HIDDEN);
    unsigned found[2][4];
#pragma unroll
    for (int j = 0; j < 4; j++) found[0][j] = weights_at(upper, me, s * 4 + j), found[1][j] = weights_at(lower, me, s * 4 + j);
    return {{found[0][0], found[1][0], found[0][1], found[1][1]}, {found[0][2], found[1][2], found[0][3], found[1][3]}};
}

// Of split float32 TWICE parts, spread among all, are split once and kept in two halves: the first in the part's place, the second
// after the last part.
__device__ inline constexpr bool is_twice(int part) { return (part + 1) * TWICE / WHOLE > part * TWICE / WHOLE; }
__device__ inline Slice kept_part_of(const storage* weight, const Thread& me, int kept) {
    const int part = kept < WHOLE ? kept : ((kept - WHOLE + 1) * WHOLE - 1) / max(TWICE, 1);
    const Slice whole = heard_part_of(weight, me, part / ROW_TILES, part % ROW_TILES);
#if SPLIT
    if (is_twice(part)) return kept < WHOLE ? coarse(whole) : halves_of(whole).second;
#endif
    return whole;
}
__device__ inline Halves kept_halves(const Resident& weights, int part) {
#if SPLIT
    if (is_twice(part)) return {weights.at(part), weights.at(WHOLE + part * TWICE / WHOLE)};
#endif
    return halves_of(weights.at(part));
}

// A lane's parcels of a tile, AT_HAND of each 8 sequences at once.
struct HeardColumns {
    uint4 parcels[ABREAST][AT_HAND];

    __device__ static bool is_told(const Thread& me, int n, int k) {
        return n * 8 + me.lane / 4 < SEQUENCES && k < A_LANE && at_of(me, k) < OF_ALL;
    }
    __device__ static const uint4* place_of(const uint4* handoff, const Thread& me, int n, int k) {
        return handoff + at_of(me, 0) * 8 + me.lane / 4 + n * OF_EIGHT + k * 32;
    }

    // The k-th of all 8 sequences, whether they are there or not.
    __device__ void begin_one(const uint4* handoff, const Thread& me, int k) {
#pragma unroll
        for (int n = 0; n < ABREAST; n++)
            parcels[n][k % AT_HAND] = is_told(me, n, k) ? published(place_of(handoff, me, n, k)) : uint4{};
    }
    __device__ void begin(const uint4* handoff, const Thread& me) {
#pragma unroll
        for (int k = 0; k < AT_HAND; k++) begin_one(handoff, me, k);
    }

    // Whether those from the k-th on, before the end-th, are there.
    __device__ bool has(const Thread& me, unsigned number, int k, int end) const {
        bool is_whole = true;
#pragma unroll
        for (; k < end; k++)
#pragma unroll
            for (int n = 0; n < ABREAST; n++) is_whole &= !is_told(me, n, k) || parcel::has(parcels[n][k % AT_HAND], number);
        return is_whole;
    }

    // Until they are, while those before the begun-th that are not are read again. By whole warps. False when they do not come.
    __device__ bool wait(const uint4* handoff, const Thread& me, unsigned number, int k, int end, int begun) {
        if (__all_sync(~0u, has(me, number, k, end))) return true;
        return wait_together([&] {
            const bool is_whole = has(me, number, k, end);
#pragma unroll
            for (int i = k; i < begun; i++)
#pragma unroll
                for (int n = 0; n < ABREAST; n++)
                    read_again(parcels[n][i % AT_HAND], place_of(handoff, me, n, i),
                               is_told(me, n, i) && !parcel::has(parcels[n][i % AT_HAND], number));
            return is_whole;
        });
    }

    __device__ unsigned word(int n, int j) const {
        return j / WORDS_EACH < A_LANE ? parcel::word(parcels[n][j / WORDS_EACH % AT_HAND], j % WORDS_EACH) : 0;
    }
    __device__ Columns slice(int n, int s) const {
        return columns_of({word(n, s * 4), word(n, s * 4 + 1), word(n, s * 4 + 2), word(n, s * 4 + 3)});
    }

    // The product with a tile's states, which were begun, added to `sums`. By whole warps. False when they do not come.
    // meanwhile(): called once the first are there.
    template <typename Meanwhile>
    __device__ bool add(Sums (&sums)[ROW_TILES][ABREAST], const Resident& weights, const uint4* handoff, const Thread& me,
                        unsigned number, Meanwhile meanwhile) {
#pragma unroll
        for (int s = 0; s < SLICES_EACH; s++) {
#pragma unroll
            for (int k = 0; k < A_LANE; k += WAITED)  // whose first word the slice has
                if (k * WORDS_EACH / 4 == s) {
                    // The slice may still need parcel k - 1, whose place is not given on then.
                    const int begun = k == 0 ? AT_HAND : k + AT_HAND - (WAITED == 1);
                    if (!wait(handoff, me, number, k, min(k + WAITED, A_LANE), min(begun, A_LANE))) return false;
                    if (k == 0) meanwhile();
                }
            if (SPLIT && !TWICE) part_here(handoff);  // splitting all that comes would take more registers
            Columns columns[ABREAST];
#pragma unroll
            for (int n = 0; n < ABREAST; n++) columns[n] = slice(n, s);
#pragma unroll
            for (int i = 0; i < ROW_TILES; i++) add_slice(sums[i], kept_halves(weights, s * ROW_TILES + i), columns);
#pragma unroll
            for (int k = 0; k + AT_HAND < A_LANE; k++)  // whose last word the slice had
                if ((k * WORDS_EACH + WORDS_EACH - 1) / 4 == s) begin_one(handoff, me, k + AT_HAND);
        }
        return true;
    }
};
