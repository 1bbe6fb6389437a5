// What blocks of a grid tell each other of a tile of sequences whose states are columns of a product on the tensor cores, in
// parcels (heard.cuh) of three words, or of six elements for TF32's products, which leave 13 bits out.
#pragma once
#include "columns.cuh"
#include "heard.cuh"

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
