// What blocks of a grid publish of a tile of sequences whose states are operand B of a product on the tensor cores: packets
// (ll_packet.cuh) of three words, or of six elements for products in TF32, which drop 13 bits.
#pragma once
#include "b_tile.cuh"
#include "ecornn/rnn/ll_packet.cuh"

// Of each of six floats the upper 16 bits, two of them a word, then the 3 bits below, and the epoch's last 14.
struct PackedTf32Packet {
    static constexpr int NUM_WORDS = 6;
    __device__ static unsigned round_to_tf32(unsigned x) {  // to nearest; NaN stays NaN
        const unsigned size = x & 0x7fffffff;
        return size < 0x7f800000 ? x + 0x1000 : size > 0x7f800000 ? 0x7fc00000 : x;
    }
    __device__ static uint4 pack(const unsigned* words, unsigned epoch) {
        unsigned rounded[6], below = epoch << 18;
#pragma unroll
        for (int i = 0; i < 6; i++) rounded[i] = round_to_tf32(words[i]), below |= (rounded[i] >> 13 & 7) << i * 3;
        return {pack_high_halves(rounded[0], rounded[1]), pack_high_halves(rounded[2], rounded[3]),
                pack_high_halves(rounded[4], rounded[5]), below};
    }
    __device__ static unsigned pack_high_halves(unsigned first, unsigned second) { return first >> 16 | (second & 0xffff0000); }
    __device__ static bool is_valid(const uint4& packet, unsigned epoch) { return packet.w >> 18 == (epoch & 0x3fff); }
    __device__ static unsigned word(const uint4& packet, int i) {
        const unsigned two = LL16Packet::word(packet, i / 2);
        return (i % 2 ? two & 0xffff0000 : two << 16) | (packet.w >> i * 3 & 7) << 13;
    }
};

template <bool IS_TF32> struct StatePacket : LL16Packet {};
template <> struct StatePacket<true> : PackedTf32Packet {};

// What a block publishes: ELEMENTS elements of each of a tile's sequences, of which SEQUENCES are published.
template <int ELEMENTS> struct alignas(16) OutgoingTile {
    typedef StatePacket<IS_SINGLE_TF32> Packet;
    static constexpr int WORDS_PER_SEQUENCE = ELEMENTS * (int)sizeof(scalar_t) / 4, WORDS = Packet::NUM_WORDS;
    static constexpr int PACKETS = (SEQUENCES * WORDS_PER_SEQUENCE + WORDS - 1) / WORDS;
    unsigned words[8 * WORDS_PER_SEQUENCE + 8];
    __device__ scalar_t& at(unsigned element, unsigned column) {
        return ((scalar_t*)words)[column * ELEMENTS + element % ELEMENTS];
    }

    // mailbox: from the block's first packet on.
    __device__ void publish(uint4* mailbox, int thread, unsigned epoch) const {
        for (int i = thread; i < PACKETS; i += THREADS) st_relaxed_b128(mailbox + i, Packet::pack(words + i * WORDS, epoch));
    }

    // Writes a packet into the block's states, a BTile. index: among all packets of a tile, one block's after another's.
    template <typename States> __device__ static void unpack_into(States& states, unsigned index, const uint4& packet) {
        const unsigned first = index / PACKETS * ELEMENTS, word = index % PACKETS * WORDS;
        constexpr bool IS_OF_ONE_SEQUENCE = WORDS_PER_SEQUENCE % WORDS == 0;
#pragma unroll
        for (unsigned i = 0; i < WORDS; i++) {
            const unsigned of_sequence = IS_OF_ONE_SEQUENCE ? word % WORDS_PER_SEQUENCE + i : (word + i) % WORDS_PER_SEQUENCE;
            const unsigned element = first + of_sequence * (4 / (unsigned)sizeof(scalar_t));
            const unsigned column = IS_OF_ONE_SEQUENCE ? word / WORDS_PER_SEQUENCE : (word + i) / WORDS_PER_SEQUENCE;
            if (SEQUENCES * WORDS_PER_SEQUENCE % WORDS == 0 || column < SEQUENCES)
                *(unsigned*)&states.at(element, column) = Packet::word(packet, i);
        }
    }
};
