// What blocks of a grid tell each other of a tile of sequences, in parcels of 16 bytes, with a number by which who waits for a
// parcel knows that it is there: three words and the number, or six elements for TF32's products, which leave 13 bits out.
#pragma once
#include "columns.cuh"
#include "grid.cuh"

struct Words {
    static constexpr int EACH = 3;  // words of a parcel
    __device__ static uint4 pack(const unsigned* words, unsigned number) { return {words[0], words[1], words[2], number}; }
    __device__ static bool has(const uint4& parcel, unsigned number) { return parcel.w == number; }
    __device__ static unsigned word(const uint4& parcel, int i) { return i == 0 ? parcel.x : i == 1 ? parcel.y : parcel.z; }
};

// Of each of six floats the upper 16 bits, two of them a word, then the 3 bits below, and the number's last 14.
struct Tf32Words {
    static constexpr int EACH = 6;
    __device__ static unsigned rounded(unsigned x) {  // to nearest; what is no number stays one that is none
        const unsigned size = x & 0x7fffffff;
        return size < 0x7f800000 ? x + 0x1000 : size > 0x7f800000 ? 0x7fc00000 : x;
    }
    __device__ static uint4 pack(const unsigned* words, unsigned number) {
        unsigned found[6], below = number << 18;
#pragma unroll
        for (int i = 0; i < 6; i++) found[i] = rounded(words[i]), below |= (found[i] >> 13 & 7) << i * 3;
        return {upper(found[0], found[1]), upper(found[2], found[3]), upper(found[4], found[5]), below};
    }
    __device__ static unsigned upper(unsigned first, unsigned second) { return first >> 16 | (second & 0xffff0000); }
    __device__ static bool has(const uint4& parcel, unsigned number) { return parcel.w >> 18 == (number & 0x3fff); }
    __device__ static unsigned word(const uint4& parcel, int i) {
        const unsigned two = Words::word(parcel, i / 2);
        return (i % 2 ? two & 0xffff0000 : two << 16) | (parcel.w >> i * 3 & 7) << 13;
    }
};

template <bool IS_TF32> struct Parcel : Words {};
template <> struct Parcel<true> : Tf32Words {};

// What a block tells: OWN elements of each of a tile's sequences, of which SEQUENCES are told.
template <int OWN> struct alignas(16) Told {
    typedef Parcel<OF_TF32> parcel;
    static constexpr int WORDS = OWN * (int)sizeof(storage) / 4, EACH = parcel::EACH;
    static constexpr int PARCELS = (SEQUENCES * WORDS + EACH - 1) / EACH;
    unsigned words[8 * WORDS + 8];
    __device__ storage& of(unsigned element, unsigned column) { return ((storage*)words)[column * OWN + element % OWN]; }

    // place: of the block's first parcel.
    __device__ void tell(uint4* place, int thread, unsigned number) const {
        for (int i = thread; i < PARCELS; i += THREADS) publish(place + i, parcel::pack(words + i * EACH, number));
    }

    // Of all that is told, one block's after the other's, a parcel into a block's columns.
    __device__ static void put(States& states, unsigned place, const uint4& found) {
        const unsigned first = place / PARCELS * OWN, word = place % PARCELS * EACH;
        constexpr bool IS_OF_ONE = WORDS % EACH == 0;  // sequence
#pragma unroll
        for (unsigned i = 0; i < EACH; i++) {
            const unsigned of_sequence = IS_OF_ONE ? word % WORDS + i : (word + i) % WORDS;
            const unsigned element = first + of_sequence * (4 / (unsigned)sizeof(storage));
            const unsigned column = IS_OF_ONE ? word / WORDS : (word + i) / WORDS;
            if (SEQUENCES * WORDS % EACH == 0 || column < SEQUENCES)
                *(unsigned*)&states.of(element, column) = parcel::word(found, i);
        }
    }
};

// ALL parcels of a tile, on their way to BY of a block's threads: MOST at once to each of them, of which it begins to read
// MOST_AHEAD before it needs them.
template <typename Kind, int ALL, int MOST_AHEAD, int BY = THREADS, int MOST = 8> struct Heard {
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
