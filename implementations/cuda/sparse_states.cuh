// What blocks of a grid tell each other where each multiplies pruned rows: of every hidden unit TOLD_EACH values for each of a
// tile's SEQUENCES, a unit's beside each other, which all blocks have in shared memory, or each of a cluster those of one segment of
// the blocks. A position is one value of all sequences: so many bytes are read at once. Blocks tell in parcels that say themselves
// that they are there (heard.cuh; Lamport timestamps), or, without TIMESTAMPS, meet once a tile and step.
#pragma once
#include "clear.cuh"
#include "heard.cuh"
#include "recurrent_gates.cuh"
#include "roles.cuh"

#define BLOCK_THREADS 512
#define TILE_BATCH SEQUENCES
#define STATES_PER_THREAD ((UNITS * SEQUENCES * LANES + GATE_THREADS - 1) / GATE_THREADS)  // of a thread in a tile
#define OF_UNITS (UNITS * TOLD_EACH)  // positions that a block tells
#define WIDE_BYTES (SEQUENCES * (int)sizeof(scalar_t))
#define CLASSES (128 / WIDE_BYTES)  // positions that lie in different banks, or in the same word of one
#define SEGMENT (BLOCKS / CLUSTER)  // blocks that a block hears
#define ZEROS ((SEGMENT * OF_UNITS + CLASSES - 1) / CLASSES * CLASSES)  // the first of CLASSES positions of which none is a unit's
#define HEARERS (BLOCK_THREADS - GATE_THREADS)  // threads that have no states

enum Where { FOUND = 1, TOLD_ALL = 2, TOLD = 3 };  // meetings of who has states; the others wait until these have told

// Of a group of blocks whose sequences are from that on.
__device__ inline int tiles_of(int first_sequence, int batch) { return min(TILES, (batch - first_sequence + TILE_BATCH - 1) / TILE_BATCH); }

struct alignas(16) States {
    scalar_t at[(ZEROS + CLASSES) * SEQUENCES];
};

// A tile's values of a block's own units, as it tells them.
struct alignas(16) Own {
    static constexpr int VALUES = OF_UNITS * SEQUENCES, EACH = 12 / (int)sizeof(scalar_t);  // of a parcel
    static constexpr int PARCELS = (VALUES + EACH - 1) / EACH;
    scalar_t values[PARCELS * EACH];

    __device__ scalar_t& at(int unit, int column, int which = 0) {
        return values[(unit % UNITS * TOLD_EACH + which) * SEQUENCES + column];
    }

    // place: of the block's first parcel.
    __device__ void tell(uint4* place, int thread, unsigned number) const {
        for (int i = thread; i < PARCELS; i += GATE_THREADS) {
            const unsigned* words = (const unsigned*)(values + i * EACH);
            st_relaxed_b128(place + i, LL16Packet::pack(words, number));
        }
    }

    // A parcel of all that is told, one block's after the other's.
    __device__ static void put(States& states, unsigned place, const uint4& parcel) {
        constexpr int WORDS = VALUES * (int)sizeof(scalar_t) / 4, IS_WHOLE = VALUES * sizeof(scalar_t) % 4 == 0;
        const unsigned block = place / PARCELS, first = place % PARCELS * LL16Packet::NUM_WORDS;
        const unsigned words[3] = {parcel.x, parcel.y, parcel.z};
#pragma unroll
        for (int i = 0; i < EACH && !IS_WHOLE; i++)
            if (place % PARCELS * EACH + i < VALUES)
                states.at[block * VALUES + place % PARCELS * EACH + i] = ((const scalar_t*)words)[i];
#pragma unroll
        for (int i = 0; i < LL16Packet::NUM_WORDS && IS_WHOLE; i++)
            if (WORDS % LL16Packet::NUM_WORDS == 0 || first + i < WORDS) ((unsigned*)states.at)[block * WORDS + first + i] = words[i];
    }
};

#define ALL_PARCELS (BLOCKS * Own::PARCELS)  // of a tile
#define HEARD_PARCELS (SEGMENT * Own::PARCELS)

// What is told of a step of a tile, numbered among those of all groups of blocks. After all parcels comes a counter for each.
struct Handoff {
    unsigned own, heard;  // the first of the block's, of a tile's; that it hears
    uint4* parcels;
    unsigned* counters;
    __device__ Handoff(uint4* all, int tiles, int block)
        : own(block % BLOCKS * Own::PARCELS), heard(block % CLUSTER * HEARD_PARCELS), parcels(all), counters((unsigned*)(all + tiles * 2u * ALL_PARCELS)) {}
    __device__ uint4* at(int tile, unsigned number) const { return parcels + (tile * 2u + number % 2) * ALL_PARCELS; }
    __device__ unsigned* counter(int tile) const { return counters + tile * 4; }
};

#if TIMESTAMPS
typedef LL16Packet Told;
#else
struct Told : LL16Packet {
    __device__ static bool is_valid(const uint4&, unsigned) { return true; }
};
#endif

// By GATE_THREADS threads, of which `me` is the number; told: how often the block has told of that tile, this time included.
__device__ inline void tell(const Own& own, const Handoff& handoff, int tile, unsigned number, int me) {
    own.tell(handoff.at(tile, number) + handoff.own, me, number);
#if !TIMESTAMPS
    named_barrier_sync(TOLD_ALL, GATE_THREADS);
    if (me == 0) red_add_release(handoff.counter(tile));
#endif
}

// By HEARERS threads, of which `me` is the number: what all, or a segment's, have told of a tile, for the told-th time. False when it does not come.
__device__ inline bool hear(States& states, const Handoff& handoff, int tile, unsigned number, unsigned told, int me) {
#if !TIMESTAMPS
    const unsigned* counter = handoff.counter(tile);
    if (!spin_until_warp([&] { return ld_acquire(counter) >= told * BLOCKS; })) return false;
#endif
    PacketReader<Told, HEARD_PARCELS, 0, HEARERS> heard;
    return heard.receive(handoff.at(tile, number) + handoff.heard, me, number,
                        [&](unsigned place, const uint4& parcel) { Own::put(states, place, parcel); });
}
