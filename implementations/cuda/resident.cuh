// A warp's weights, ROW_TILES of 16 rows by SLICES_EACH slices of columns, and where W_ih is among them INPUT_SLICES more of it,
// at hand for a product in every step, which takes turns, each of TOGETHER parts: 16 rows each, all by the same slice of columns.
// Of PARTS parts the first HELD lie in registers, the next SHARED in shared memory. Those left over are written to memory once, as
// threads read them, and come from the L2 cache in every step, RING turns ahead: whole turns, HELD + SHARED being a multiple of
// TOGETHER then. Every thread reads what it wrote itself, or another cluster's thread wrote alike. From W_hh they read
// READ_AT_ONCE parts at once, in one loop, as code is slow the first time that it runs; where these are HELD, all that registers
// hold, the others before, one after the other. TWICE: parts beside these that a kernel keeps as it likes.
#pragma once
#include "later.cuh"
#include "warp_product.cuh"

#ifndef INPUT_SLICES
#define INPUT_SLICES 0
#endif
#ifndef TWICE
#define TWICE 0
#endif
#define WHOLE (ROW_TILES * (SLICES_EACH + INPUT_SLICES))
#define PARTS (WHOLE + TWICE)
#define TURNS (PARTS / TOGETHER)
#define LEFT_OVER (PARTS - HELD - SHARED)
#define STREAMED (LEFT_OVER / TOGETHER)  // turns
#define UNROLLED ((HELD + TOGETHER - 1) / TOGETHER)  // turns whose parts are, some at least, in registers
#define ALONE (READ_AT_ONCE == HELD ? PARTS - HELD : 0)  // parts that are read one after the other
#define READS ((PARTS - ALONE + READ_AT_ONCE - 1) / READ_AT_ONCE)  // of the others, together all of them or more
#define IN_ROOM (SHARED + RING * TOGETHER)

// Of a block: parts that stay in shared memory, then those that come and go.
struct Room {
    uint4 parts[IN_ROOM > 0 ? IN_ROOM : 1][2][THREADS];
};

struct Resident {
    Slice held[HELD];
    Room& room;
    uint4* left_over;  // [LEFT_OVER][2][THREADS], this block's
    int slot;

    // part_of(turn, i): the thread's elements of the turn's i-th part.
    template <typename PartOf>
    __device__ Resident(Room& room, uint4* all_left_over, int rank, PartOf part_of) : held(), room(room), slot(0) {
        left_over = all_left_over + (long long)rank * LEFT_OVER * 2 * THREADS;
#pragma unroll 1
        for (int i = 0; i < ALONE; i++) read<1>(i, part_of);
#pragma unroll 1
        for (int i = PARTS - READS * READ_AT_ONCE; i < PARTS; i += READ_AT_ONCE) read<READ_AT_ONCE>(i, part_of);
        if (!STREAMED) return;
        __threadfence();
        for (int turn = 0; turn < RING; turn++) load_stage(turn, turn);
    }

    // SOME parts, from the first-th of an order on in which those that are held come last. Before its start are none.
    // Registers have no index: parts come in at the end, and those before them move up, and out.
    template <int SOME, typename PartOf> __device__ void read(int first, PartOf part_of) {
        Slice found[SOME];
#pragma unroll
        for (int i = 0; i < SOME; i++) {
            unsigned part = (max(first + i, 0) + HELD) % PARTS;
            opaque(part);  // of a number that it knows to be odd NVRTC 13.0 and 13.5 take for the half the whole
            found[i] = part_of(part / TOGETHER, part % TOGETHER);
        }
#pragma unroll
        for (int i = 0; i < SOME; i++)
            if (first + i >= 0 && first + i < PARTS - HELD) put(place_of(first + i + HELD), found[i]);
#pragma unroll
        for (int part = 0; part + SOME < HELD; part++) held[part] = held[part + SOME];
#pragma unroll
        for (int i = 0; i < SOME; i++) held[HELD - SOME + i] = found[i];
    }

    // Where a part is that is not held.
    __device__ uint4* place_of(int part) const {
        const bool is_near = LEFT_OVER == 0 || part < HELD + SHARED;
        return is_near ? room.parts[part - HELD][0] : left_over + (part - HELD - SHARED) * 2 * THREADS;
    }

    __device__ static void put(uint4* place, const Slice& part) {
        place[threadIdx.x] = part.left, place[THREADS + threadIdx.x] = part.right;
    }
    __device__ static Slice get(const uint4* place) { return {place[threadIdx.x], place[THREADS + threadIdx.x]}; }

    __device__ void load_stage(int turn, int into) {
        for (int i = 0; i < 2 * TOGETHER; i++)
            cp_async_16B(room.parts[SHARED + into * TOGETHER][0] + i * THREADS + threadIdx.x,
                       left_over + (turn * 2 * TOGETHER + i) * THREADS + threadIdx.x);
        cp_async_commit_group();
    }

    __device__ Slice near(int part) const { return get(room.parts[part - HELD][0]); }
    __device__ Slice at(int part) const { return part < HELD ? held[part < HELD ? part : 0] : near(part); }

    // take(turn, part), of all turns in their order: part(i) is the turn's i-th.
    template <typename Take> __device__ void in_order(Take take) {
#pragma unroll
        for (int turn = 0; turn < UNROLLED; turn++) take(turn, [&](int i) { return at(turn * TOGETHER + i); });
#pragma unroll 2
        for (int turn = UNROLLED; turn < TURNS - STREAMED; turn++) take(turn, [&](int i) { return near(turn * TOGETHER + i); });
        each_streamed(take);
    }

    // Of turns FROM to before TO in any order: those whose parts are in shared memory come between those whose parts are in
    // registers; when one is over, the next one's first part is read.
    template <int FROM = 0, int TO = TURNS, typename Take> __device__ void each_turn(Take take) {
        constexpr int IN_REGISTERS = UNROLLED < FROM ? FROM : UNROLLED < TO ? UNROLLED : TO;
        constexpr int NEAR = TURNS - STREAMED < TO ? TURNS - STREAMED : TO;
        constexpr int HELD_TURNS = IN_REGISTERS - FROM, NEAR_TURNS = NEAR > IN_REGISTERS ? NEAR - IN_REGISTERS : 0;
        constexpr int ROUNDS = HELD_TURNS > 0 ? HELD_TURNS : 1;
        Slice first = NEAR_TURNS > 0 ? near(IN_REGISTERS * TOGETHER) : Slice();
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            if (round < HELD_TURNS) take(FROM + round, [&](int i) { return at((FROM + round) * TOGETHER + i); });
#pragma unroll
            for (int n = round * NEAR_TURNS / ROUNDS; n < (round + 1) * NEAR_TURNS / ROUNDS; n++) {
                const int turn = IN_REGISTERS + n;
                take(turn, [&](int i) { return i == 0 ? first : near(turn * TOGETHER + i); });
                if (n + 1 < NEAR_TURNS) first = near((turn + 1) * TOGETHER);
            }
        }
        each_streamed(take);
    }

    // Of those that come from memory.
    template <typename Take> __device__ void each_streamed(Take take) {
#pragma unroll 1
        for (int s = 0; s < STREAMED; s++) {
            cp_async_wait_group<(RING > 0 ? RING - 1 : 0)>();
            take(TURNS - STREAMED + s, [&](int i) { return get(room.parts[SHARED + slot * TOGETHER + i][0]); });
            load_stage(s + RING < STREAMED ? s + RING : s + RING - STREAMED, slot);
            slot = slot + 1 < RING ? slot + 1 : 0;
        }
    }

    // Nothing is on its way any more.
    __device__ void finish() const { cp_async_wait_group<0>(); }
};
