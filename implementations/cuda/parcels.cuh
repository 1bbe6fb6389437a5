// What blocks of a grid tell each other of a tile of sequences, in parcels of 16 bytes: three words, and a number by which who
// waits for a parcel knows that it is there.
#pragma once
#include "columns.cuh"
#include "grid.cuh"

// What a block tells: OWN elements of each of a tile's sequences, of which SEQUENCES are told.
template <int OWN> struct alignas(16) Told {
    static constexpr int WORDS = OWN * (int)sizeof(storage) / 4, PARCELS = (SEQUENCES * WORDS + 2) / 3;
    unsigned words[8 * WORDS + 4];
    __device__ storage& of(unsigned element, unsigned column) { return ((storage*)words)[column * OWN + element % OWN]; }

    // place: of the block's first parcel.
    __device__ void tell(uint4* place, int thread, unsigned number) const {
        for (int i = thread; i < PARCELS; i += THREADS)
            publish(place + i, {words[i * 3], words[i * 3 + 1], words[i * 3 + 2], number});
    }

    // Of all that is told, one block's after the other's, a parcel into a block's columns.
    __device__ static void put(States& states, unsigned place, const uint4& parcel) {
        const unsigned first = place / PARCELS * OWN, word = place % PARCELS * 3;
        const unsigned words[3] = {parcel.x, parcel.y, parcel.z};
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const unsigned element = first + (word + i) % WORDS * (4 / (unsigned)sizeof(storage)), column = (word + i) / WORDS;
            if (SEQUENCES * WORDS % 3 == 0 || column < SEQUENCES) *(unsigned*)&states.of(element, column) = words[i];
        }
    }
};

// ALL parcels of a tile, on their way to so many READERS, a block's threads: MOST at once to each of them, of which it begins to
// read MOST_AHEAD before it needs them.
template <int ALL, int MOST_AHEAD, int READERS = THREADS, int MOST = 8> struct Heard {
    static constexpr int A_THREAD = (ALL + READERS - 1) / READERS, AT_ONCE = A_THREAD < MOST ? A_THREAD : MOST;
    static constexpr int AHEAD = AT_ONCE < MOST_AHEAD ? AT_ONCE : MOST_AHEAD;
    uint4 parcels[AT_ONCE];

    // The thread's parcels from `first` on, of them those from FROM to before TO, whether they are there or not.
    template <int FROM, int TO> __device__ void begin(const uint4* handoff, int first) {
#pragma unroll
        for (int i = FROM; i < TO; i++)
            parcels[i] = first + i * READERS < ALL ? published(handoff + first + i * READERS) : uint4{};
    }
    __device__ void begin_ahead(const uint4* handoff, int thread) { begin<0, AHEAD>(handoff, thread); }

    // After AHEAD of them were begun: put(place, parcel) of all. False when they do not come.
    template <typename Put> __device__ bool finish(const uint4* handoff, int thread, unsigned number, Put put) {
        begin<AHEAD, AT_ONCE>(handoff, thread);
#pragma unroll 1
        for (int first = thread; first < ALL;) {
            const bool is_there = wait_until([&] {
                bool is_whole = true;
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) is_whole &= first + i * READERS >= ALL || parcels[i].w == number;
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    if (first + i * READERS < ALL && parcels[i].w != number) parcels[i] = published(handoff + first + i * READERS);
                return is_whole;
            });
            if (!is_there) return false;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (first + i * READERS < ALL) put(first + i * READERS, parcels[i]);
            first += AT_ONCE * READERS;
            if (AT_ONCE < A_THREAD) begin<0, AT_ONCE>(handoff, first);
        }
        return true;
    }
};
