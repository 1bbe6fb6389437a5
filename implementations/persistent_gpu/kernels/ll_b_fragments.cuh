// How a grid's blocks publish their states, in packets (ll_state_packets.cuh) that are each one lane's part of the B fragments
// (warp_mma.cuh): states go from the L2 cache to the tensor cores by way of registers alone.
// Packets of one index (packet_weights.cuh), of 8 sequences, which are the lanes' g, are adjacent.
#pragma once
#include "packet_weights.cuh"

static_assert(PACKETS_IN_REGISTERS == PACKETS_PER_LANE || PACKETS_IN_REGISTERS >= 2, "a K tile may have words of two packets");
typedef StatePacket<IS_SINGLE_TF32> Packet;

// The states of a block's own units in a tile, as they are published: by each warp those that it computes.
struct OutgoingStates {
    unsigned words[PacketConfig::TILE_BATCH][PACKETS_PER_BLOCK * WORDS_PER_PACKET];
    __device__ scalar_t& at(unsigned unit, unsigned column) { return ((scalar_t*)words[column])[unit % UNITS]; }

    // mailbox: of the tile and step.
    __device__ void publish(uint4* mailbox, const Thread& thread, unsigned epoch) const {
        for (int i = thread.lane; i < PACKETS_PER_WARP; i += 32) {
            const int own = thread.warp * PACKETS_PER_WARP + i, packet = own / SEQUENCES, column = own % SEQUENCES;
            uint4* slot = mailbox + column / 8 * PACKET_SLOTS_PER_N_TILE +
                          (thread.first_unit / UNITS * PACKETS_PER_BLOCK + packet) * 8 + column % 8;
            if (packet < PACKETS_PER_BLOCK)
                st_relaxed_b128(slot, Packet::pack(words[column] + packet * WORDS_PER_PACKET, epoch));
        }
    }
};

__device__ inline constexpr int lcm(int a, int b) {
    int multiple = a;
    while (multiple % b) multiple += a;
    return multiple;
}

// The packet from which on others are counted: the first of a period.
template <bool IS_COUNTED> struct FirstPacket {
    static constexpr int first = 0;
    __device__ void begin_at(int) {}
};
template <> struct FirstPacket<true> {
    int first = 0;
    __device__ void begin_at(int packet) { first = packet; }
};

// A lane's packets of a tile, PACKETS_IN_REGISTERS of each 8 sequences at once.
struct PacketBFragments : FirstPacket<IS_ROLLED> {
    uint4 packets[N_TILES][PACKETS_IN_REGISTERS];

    __device__ bool is_expected(const Thread& thread, int n, int k) const {
        return n * 8 + thread.lane / 4 < SEQUENCES && first + k < PACKETS_PER_LANE &&
               packet_index(thread, first + k) < PACKETS_PER_SEQUENCE;
    }
    __device__ const uint4* packet_ptr(const uint4* mailbox, const Thread& thread, int n, int k) const {
        return mailbox + packet_index(thread, 0) * 8 + thread.lane / 4 + n * PACKET_SLOTS_PER_N_TILE + (first + k) * 32;
    }

    // Loads the k-th of all 8 sequences, whether they are valid or not.
    __device__ void prefetch_packet(const uint4* mailbox, const Thread& thread, int k) {
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
            packets[n][k % PACKETS_IN_REGISTERS] =
                is_expected(thread, n, k) ? ld_relaxed_b128(packet_ptr(mailbox, thread, n, k)) : uint4{};
    }
    __device__ void prefetch(const uint4* mailbox, const Thread& thread) {
#pragma unroll
        for (int k = 0; k < PACKETS_IN_REGISTERS; k++) prefetch_packet(mailbox, thread, k);
    }

    // Whether those from the k-th on, before the end-th, are there.
    __device__ bool is_valid(const Thread& thread, unsigned epoch, int k, int end) const {
        bool is_whole = true;
#pragma unroll
        for (; k < end; k++)
#pragma unroll
            for (int n = 0; n < N_TILES; n++)
                is_whole &= !is_expected(thread, n, k) || Packet::is_valid(packets[n][k % PACKETS_IN_REGISTERS], epoch);
        return is_whole;
    }

    // Waits until they are valid; polls those before the prefetched-th that are not. By whole warps. False on a timeout.
    __device__ bool wait(const uint4* mailbox, const Thread& thread, unsigned epoch, int k, int end, int prefetched) {
        if (__all_sync(~0u, is_valid(thread, epoch, k, end))) return true;
        return spin_until_warp([&] {
            const bool is_whole = is_valid(thread, epoch, k, end);
#pragma unroll
            for (int i = k; i < prefetched; i++)
#pragma unroll
                for (int n = 0; n < N_TILES; n++)
                    ld_relaxed_b128_if(
                        packets[n][i % PACKETS_IN_REGISTERS], packet_ptr(mailbox, thread, n, i),
                        is_expected(thread, n, i) && !Packet::is_valid(packets[n][i % PACKETS_IN_REGISTERS], epoch));
            return is_whole;
        });
    }

    __device__ unsigned word(int n, int j) const {
        const int k = j / WORDS_PER_PACKET;
        return first + k < PACKETS_PER_LANE ? Packet::word(packets[n][k % PACKETS_IN_REGISTERS], j % WORDS_PER_PACKET) : 0;
    }
    __device__ BFragment b_fragment(int n, int s) const {
        return make_b_fragment({word(n, s * 4), word(n, s * 4 + 1), word(n, s * 4 + 2), word(n, s * 4 + 3)});
    }

    // Adds the product with a tile's states, which were prefetched, to `sums`. By whole warps. False on a timeout.
    // meanwhile(): called once the first are valid.
    template <typename Meanwhile>
    __device__ bool mma_from_packets(Accumulator (&sums)[M_TILES_PER_WARP][N_TILES], Weights& weights,
                                     const uint4* mailbox, const Thread& thread, unsigned epoch, Meanwhile meanwhile) {
        if constexpr (IS_ROLLED) return mma_rolled(sums, weights, mailbox, thread, epoch, meanwhile);
#pragma unroll
        for (int s = 0; s < K_TILES_PER_WARP; s++) {
#pragma unroll
            for (int i = 0; i < PACKETS_PER_K_TILE; i++) {
                const int k = ceil_div(4 * s, WORDS_PER_PACKET) + i;  // whose first word the K tile has
                if (k < PACKETS_PER_LANE && k % PACKETS_PER_WAIT == 0 && k * WORDS_PER_PACKET / 4 == s) {
                    // The K tile may still need packet k - 1, whose registers are not reused then.
                    const int prefetched = k == 0 ? PACKETS_IN_REGISTERS : k + PACKETS_IN_REGISTERS - (PACKETS_PER_WAIT == 1);
                    const int end = min(k + PACKETS_PER_WAIT, PACKETS_PER_LANE);
                    if (!wait(mailbox, thread, epoch, k, end, min(prefetched, PACKETS_PER_LANE))) return false;
                    if (k == 0) meanwhile();
                }
            }
            // Splitting all fragments at once would take more registers.
            if (USE_3XTF32 && !PRESPLIT_FRAGMENTS) scheduling_fence(mailbox);
            BFragment columns[N_TILES];
#pragma unroll
            for (int n = 0; n < N_TILES; n++) columns[n] = b_fragment(n, s);
#pragma unroll
            for (int i = 0; i < M_TILES_PER_WARP; i++) mma_k_tile(sums[i], split_fragment<true>(weights, s, i), columns);
            if (STREAMED_K_TILES > 0 && is_streamed(s)) weights.load_next_stage();
#pragma unroll
            for (int i = 0; i < PACKETS_PER_K_TILE; i++) {
                const int k = 4 * s / WORDS_PER_PACKET + i;  // whose last word the K tile had
                if (k + PACKETS_IN_REGISTERS < PACKETS_PER_LANE && (k * WORDS_PER_PACKET + WORDS_PER_PACKET - 1) / 4 == s)
                    prefetch_packet(mailbox, thread, k + PACKETS_IN_REGISTERS);
            }
        }
        return true;
    }

    // Likewise, in periods of K tiles after which words and registers of packets begin anew, then those that are left.
    template <typename Meanwhile>
    __device__ bool mma_rolled(Accumulator (&sums)[M_TILES_PER_WARP][N_TILES], Weights& weights, const uint4* mailbox,
                               const Thread& thread, unsigned epoch, Meanwhile meanwhile) {
        constexpr int PERIOD_PACKETS = lcm(PACKETS_IN_REGISTERS, WORDS_PER_PACKET == 3 ? 4 : 2);
        constexpr int PERIOD = PERIOD_PACKETS * WORDS_PER_PACKET / 4;
        constexpr int ROLLED = (K_TILES_PER_WARP - Weights::REG_PASSES) / PERIOD * PERIOD;
#pragma unroll 1
        for (int k_tile = 0; k_tile < ROLLED; k_tile += PERIOD) {
#pragma unroll
            for (int s = 0; s < PERIOD; s++)
                if (!mma_k_tile_of_period<false>(sums, weights, mailbox, thread, epoch, meanwhile, k_tile, s)) return false;
            begin_at(first + PERIOD_PACKETS);
        }
#pragma unroll
        for (int s = 0; s < K_TILES_PER_WARP - ROLLED; s++)
            if (!mma_k_tile_of_period<true>(sums, weights, mailbox, thread, epoch, meanwhile, ROLLED, s)) return false;
        begin_at(0);
        return true;
    }

    // The s-th K tile of a period that begins with that k_tile and packet `first`.
    template <bool IN_REGISTERS, typename Meanwhile>
    __device__ bool mma_k_tile_of_period(Accumulator (&sums)[M_TILES_PER_WARP][N_TILES], Weights& weights,
                                         const uint4* mailbox, const Thread& thread, unsigned epoch, Meanwhile meanwhile,
                                         int k_tile, int s) {
#pragma unroll
        for (int i = 0; i < PACKETS_PER_K_TILE; i++) {
            const int k = ceil_div(4 * s, WORDS_PER_PACKET) + i;
            if (k % PACKETS_PER_WAIT == 0 && k * WORDS_PER_PACKET / 4 == s) {
                const int prefetched = k + PACKETS_IN_REGISTERS - (PACKETS_PER_WAIT == 1);
                if (!wait(mailbox, thread, epoch, k, k + PACKETS_PER_WAIT, prefetched)) return false;
                if (first + k == 0) meanwhile();
            }
        }
        if (USE_3XTF32) scheduling_fence(mailbox);
        BFragment columns[N_TILES];
#pragma unroll
        for (int n = 0; n < N_TILES; n++) columns[n] = b_fragment(n, s);
#pragma unroll
        for (int i = 0; i < M_TILES_PER_WARP; i++)
            mma_k_tile(sums[i], split_fragment<IN_REGISTERS>(weights, k_tile + s, i), columns);
        if (is_streamed(k_tile + s)) weights.load_next_stage();
#pragma unroll
        for (int i = 0; i < PACKETS_PER_K_TILE; i++) {
            const int k = 4 * s / WORDS_PER_PACKET + i;
            if ((k * WORDS_PER_PACKET + WORDS_PER_PACKET - 1) / 4 == s)
                prefetch_packet(mailbox, thread, k + PACKETS_IN_REGISTERS);
        }
        return true;
    }
};
