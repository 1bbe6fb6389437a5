// A warp's weights, ROW_TILES of 16 rows by SLICES_EACH slices of columns, at hand for a product in every step, which takes
// turns, each of TOGETHER parts: 16 rows each, all by the same slice of columns. Of PARTS parts the first HELD lie in registers,
// the next SHARED in shared memory. Those left over are written to memory once, as threads read them, and come from the L2 cache
// in every step, RING turns ahead: whole turns, HELD + SHARED being a multiple of TOGETHER then. Every thread reads what it wrote
// itself, or another cluster's thread wrote alike.
#pragma once
#include "later.cuh"
#include "warp_product.cuh"

#define PARTS (ROW_TILES * SLICES_EACH)
#define TURNS (PARTS / TOGETHER)
#define LEFT_OVER (PARTS - HELD - SHARED)
#define STREAMED (LEFT_OVER / TOGETHER)  // turns
#define UNROLLED ((HELD + TOGETHER - 1) / TOGETHER)  // turns whose parts are, some at least, in registers
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
    __device__ Resident(Room& room, uint4* all_left_over, int rank, PartOf part_of) : room(room), slot(0) {
        left_over = all_left_over + (long long)rank * LEFT_OVER * 2 * THREADS;
#pragma unroll
        for (int part = 0; part < HELD; part++) held[part] = part_of(part / TOGETHER, part % TOGETHER);
#pragma unroll 1
        for (int part = HELD; part < HELD + SHARED; part++)
            put(room.parts[part - HELD][0], part_of(part / TOGETHER, part % TOGETHER));
#pragma unroll 1
        for (int part = HELD + SHARED; part < PARTS; part++)
            put(left_over + (part - HELD - SHARED) * 2 * THREADS, part_of(part / TOGETHER, part % TOGETHER));
        if (!STREAMED) return;
        show_memory();
        for (int turn = 0; turn < RING; turn++) fetch(turn, turn);
    }

    __device__ static void put(uint4* place, const Slice& part) {
        place[threadIdx.x] = part.upper, place[THREADS + threadIdx.x] = part.lower;
    }
    __device__ static Slice get(const uint4* place) { return {place[threadIdx.x], place[THREADS + threadIdx.x]}; }

    __device__ void fetch(int turn, int into) {
        for (int i = 0; i < 2 * TOGETHER; i++)
            copy_later(room.parts[SHARED + into * TOGETHER][0] + i * THREADS + threadIdx.x,
                       left_over + (turn * 2 * TOGETHER + i) * THREADS + threadIdx.x);
        end_group();
    }

    __device__ Slice near(int part) const { return get(room.parts[part - HELD][0]); }

    // take(turn, part): part(i) is the turn's i-th.
    template <typename Take> __device__ void each_turn(Take take) {
#pragma unroll
        for (int turn = 0; turn < UNROLLED; turn++)
            take(turn, [&](int i) {
                const int part = turn * TOGETHER + i;
                return part < HELD ? held[part < HELD ? part : 0] : near(part);
            });
#pragma unroll 2
        for (int turn = UNROLLED; turn < TURNS - STREAMED; turn++) take(turn, [&](int i) { return near(turn * TOGETHER + i); });
#pragma unroll 1
        for (int s = 0; s < STREAMED; s++) {
            await_groups<(RING > 0 ? RING - 1 : 0)>();
            take(TURNS - STREAMED + s, [&](int i) { return get(room.parts[SHARED + slot * TOGETHER + i][0]); });
            fetch(s + RING < STREAMED ? s + RING : s + RING - STREAMED, slot);
            slot = slot + 1 < RING ? slot + 1 : 0;
        }
    }

    // Nothing is on its way any more.
    __device__ void finish() const { await_groups<0>(); }
};
