// Parcels of 16 bytes that blocks of a grid tell each other, with a number by which who waits for a parcel knows that it is there,
// and how a block reads all that it is told.
#pragma once
#include "grid.cuh"

// Three words, and the number.
struct Words {
    static constexpr int EACH = 3;  // words of a parcel
    __device__ static uint4 pack(const unsigned* words, unsigned number) { return {words[0], words[1], words[2], number}; }
    __device__ static bool has(const uint4& parcel, unsigned number) { return parcel.w == number; }
    __device__ static unsigned word(const uint4& parcel, int i) { return i == 0 ? parcel.x : i == 1 ? parcel.y : parcel.z; }
};

// ALL parcels of a tile, on their way to BY of a block's threads: MOST at once to each of them, of which it begins to read
// MOST_AHEAD before it needs them.
template <typename Kind, int ALL, int MOST_AHEAD, int BY, int MOST = 8> struct Heard {
    static constexpr int A_THREAD = (ALL + BY - 1) / BY, AT_ONCE = A_THREAD < MOST ? A_THREAD : MOST;
    static constexpr int ROUNDS = (A_THREAD + AT_ONCE - 1) / AT_ONCE;
    static constexpr int AHEAD = AT_ONCE < MOST_AHEAD ? AT_ONCE : MOST_AHEAD;
    uint4 parcels[AT_ONCE];

    // The thread's parcels from `first` on, of them those from FROM to before TO, whether they are there or not.
    template <int FROM, int TO> __device__ void begin(const uint4* handoff, int first) {
#pragma unroll
        for (int i = FROM; i < TO; i++)
            parcels[i] = first + i * BY < ALL ? published(handoff + first + i * BY) : uint4{};
    }
    __device__ void begin_ahead(const uint4* handoff, int thread) { begin<0, AHEAD>(handoff, thread); }

    // After AHEAD of them were begun: put(place, parcel) of all. By whole warps. False when they do not come.
    template <typename Put> __device__ bool finish(const uint4* handoff, int thread, unsigned number, Put put) {
        begin<AHEAD, AT_ONCE>(handoff, thread);
        int first = thread;
#pragma unroll 1
        for (int turn = 0; turn < ROUNDS; turn++) {
            if (turn > 0) begin<0, AT_ONCE>(handoff, first);
            const bool is_there = wait_together([&] {
                bool is_whole = true;
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) is_whole &= first + i * BY >= ALL || Kind::has(parcels[i], number);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    const bool is_missing = first + i * BY < ALL && !Kind::has(parcels[i], number);
                    if (AT_ONCE <= 8) read_again(parcels[i], handoff + first + i * BY, is_missing);
                    else if (is_missing) parcels[i] = published(handoff + first + i * BY);  // in fewer registers
                }
                return is_whole;
            });
            if (!is_there) return false;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (first + i * BY < ALL) put(first + i * BY, parcels[i]);
            first += AT_ONCE * BY;
        }
        return true;
    }
};
