// How a grid's blocks publish their states, in packets (ll_state_packets.cuh) that are each one lane's part of the B fragments
// (warp_mma.cuh): states go from the L2 cache to the tensor cores by way of registers alone.
// A block publishes its units of each sequence in PACKETS_PER_BLOCK packets, the last padded. The weights of the padding are 0.
// Of all blocks' packets of a sequence four adjacent ones are for a warp's lanes t, PACKETS_PER_LANE times; then those of the
// next warp follow. Packets of one index, of 8 sequences, which are the lanes' g, are adjacent.
#pragma once
#include "ll_state_packets.cuh"
#include "recurrent_mma_step.cuh"

static_assert(K_PARTITIONS == WARPS, "a warp multiplies all rows");
constexpr int WORDS_PER_PACKET = IS_SINGLE_TF32 ? 6 : 3, UNITS_PER_PACKET = WORDS_PER_PACKET * 4 / (int)sizeof(scalar_t);
constexpr int PACKETS_PER_BLOCK = ceil_div(UNITS, UNITS_PER_PACKET);  // of a sequence, as the next two
constexpr int PACKETS_PER_SEQUENCE = BLOCKS * PACKETS_PER_BLOCK;
constexpr int PACKETS_PER_LANE = ceil_div(PACKETS_PER_SEQUENCE, 4 * K_PARTITIONS);
constexpr int K_TILES_PER_WARP = ceil_div(PACKETS_PER_LANE * WORDS_PER_PACKET, 4);
// Packets of a sequence that a lane has at once, at least 2, and of these the packets that it waits for at once.
constexpr int PACKETS_IN_REGISTERS = PACKETS_IN_FLIGHT < PACKETS_PER_LANE ? PACKETS_IN_FLIGHT : PACKETS_PER_LANE;
constexpr int PACKETS_PER_WAIT = PACKETS_IN_REGISTERS == PACKETS_PER_LANE            ? PACKETS_PER_LANE
                                 : IS_SINGLE_TF32 && PACKETS_IN_REGISTERS == 2 ? 2
                                                                               : 1;
constexpr int PACKETS_PER_K_TILE = ceil_div(4, WORDS_PER_PACKET);  // whose first, or last, word a K tile has, at most
constexpr int PACKET_SLOTS_PER_N_TILE = PACKETS_PER_LANE * 4 * K_PARTITIONS * 8;
constexpr int PACKETS_PER_WARP = ceil_div(SEQUENCES * PACKETS_PER_BLOCK, K_PARTITIONS);  // of the block's own, of a tile

// Config of tiles of N_TILES times 8 sequences. A warp computes the states that it publishes, one packet's after another's.
struct PacketConfig {
    static constexpr int TILE_BATCH = 8 * N_TILES, NUM_POINTWISE_THREADS = THREADS;
    static constexpr int STATES_PER_THREAD = ceil_div(PACKETS_PER_WARP * UNITS_PER_PACKET, 32);
    static constexpr bool HAS_FUSED_INPUTS = false;
    __device__ static int packet_of_thread(int thread, int state) {
        return thread / 32 * PACKETS_PER_WARP + (thread % 32 + state * 32) / UNITS_PER_PACKET;
    }
    __device__ static int unit_in_block(int thread, int state) {
        return packet_of_thread(thread, state) / SEQUENCES * UNITS_PER_PACKET + (thread % 32 + state * 32) % UNITS_PER_PACKET;
    }
    __device__ static int unit_of_state(int thread, int state) { return unit_in_block(thread, state) % UNITS; }
    __device__ static int sequence_of_state(int thread, int state) {
        const bool is_one =
            thread % 32 + state * 32 < PACKETS_PER_WARP * UNITS_PER_PACKET && unit_in_block(thread, state) < UNITS;
        return is_one ? packet_of_thread(thread, state) % SEQUENCES : TILE_BATCH;
    }
};
typedef ThreadCoords<PacketConfig> Thread;
// PRESPLIT_FRAGMENTS of FRAGMENTS fragments take the place of two.
constexpr int FRAGMENTS = M_TILES_PER_WARP * K_TILES_PER_WARP;
typedef ResidentWeights<FRAGMENTS + PRESPLIT_FRAGMENTS, (REG_FRAGMENTS < 4 ? REG_FRAGMENTS : 4)> Weights;

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

// Index of a lane's k-th packet among all of a sequence.
__device__ inline int packet_index(const Thread& thread, int k) {
    return (thread.warp * PACKETS_PER_LANE + k) * 4 + thread.lane % 4;
}

// The weights of a row that are multiplied by a lane's j-th word of states.
__device__ inline unsigned load_weight_word(const MatrixRow& row, const Thread& thread, int j) {
    constexpr int UNITS_PER_WORD = 4 / sizeof(scalar_t);
    const int at = packet_index(thread, j / WORDS_PER_PACKET);
    const int local = at % PACKETS_PER_BLOCK * UNITS_PER_PACKET + j % WORDS_PER_PACKET * UNITS_PER_WORD;
    const int unit = at / PACKETS_PER_BLOCK * UNITS + local, units = min(UNITS - local, HIDDEN - unit);
    if (!row.is_inside || j >= PACKETS_PER_LANE * WORDS_PER_PACKET || at >= PACKETS_PER_SEQUENCE || units <= 0) return 0;
    if (UNITS_PER_WORD == 1 || LOAD_BYTES >= 4 && UNITS % 2 == 0) return *(const unsigned*)(row.start + unit);
    return raw_bits(row.start[unit]) | (units > 1 ? raw_bits(row.start[unit + 1]) << 16 : 0);
}

__device__ inline AFragment load_a_fragment_packet_order(const scalar_t* weight, const Thread& thread, int s, int i) {
    const int r = i * 16 + thread.lane / 4;
    const MatrixRow upper = weight_row_ptr(weight, thread, r, HIDDEN), lower = weight_row_ptr(weight, thread, r + 8, HIDDEN);
    unsigned words[2][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        words[0][j] = load_weight_word(upper, thread, s * 4 + j), words[1][j] = load_weight_word(lower, thread, s * 4 + j);
    return {{words[0][0], words[1][0], words[0][1], words[1][1]}, {words[0][2], words[1][2], words[0][3], words[1][3]}};
}

// PRESPLIT_FRAGMENTS fragments of split float32, spread among all, are split once and stay as two parts: the big one in the
// fragment's slot, the small one after the last fragment.
__device__ inline constexpr bool is_presplit(int fragment) {
    return (fragment + 1) * PRESPLIT_FRAGMENTS / FRAGMENTS > fragment * PRESPLIT_FRAGMENTS / FRAGMENTS;
}
__device__ inline AFragment load_resident_fragment(const scalar_t* weight, const Thread& thread, int index) {
    const int fragment = index < FRAGMENTS ? index : ((index - FRAGMENTS + 1) * FRAGMENTS - 1) / max(PRESPLIT_FRAGMENTS, 1);
    const AFragment all =
        load_a_fragment_packet_order(weight, thread, fragment / M_TILES_PER_WARP, fragment % M_TILES_PER_WARP);
#if USE_3XTF32
    if (is_presplit(fragment)) return index < FRAGMENTS ? tf32_big(all) : split_a_fragment(all).small;
#endif
    return all;
}
__device__ inline SplitAFragment resident_split_fragment(const Weights& weights, int fragment) {
#if USE_3XTF32
    if (is_presplit(fragment)) return {weights.at(fragment), weights.at(FRAGMENTS + fragment * PRESPLIT_FRAGMENTS / FRAGMENTS)};
#endif
    return split_a_fragment(weights.at(fragment));
}

// A lane's packets of a tile, PACKETS_IN_REGISTERS of each 8 sequences at once.
struct PacketBFragments {
    uint4 packets[N_TILES][PACKETS_IN_REGISTERS];

    __device__ static bool is_expected(const Thread& thread, int n, int k) {
        return n * 8 + thread.lane / 4 < SEQUENCES && k < PACKETS_PER_LANE && packet_index(thread, k) < PACKETS_PER_SEQUENCE;
    }
    __device__ static const uint4* packet_ptr(const uint4* mailbox, const Thread& thread, int n, int k) {
        return mailbox + packet_index(thread, 0) * 8 + thread.lane / 4 + n * PACKET_SLOTS_PER_N_TILE + k * 32;
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
        return k < PACKETS_PER_LANE ? Packet::word(packets[n][k % PACKETS_IN_REGISTERS], j % WORDS_PER_PACKET) : 0;
    }
    __device__ BFragment b_fragment(int n, int s) const {
        return make_b_fragment({word(n, s * 4), word(n, s * 4 + 1), word(n, s * 4 + 2), word(n, s * 4 + 3)});
    }

    // Adds the product with a tile's states, which were prefetched, to `sums`. By whole warps. False on a timeout.
    // meanwhile(): called once the first are valid.
    template <typename Meanwhile>
    __device__ bool mma_from_packets(Accumulator (&sums)[M_TILES_PER_WARP][N_TILES], const Weights& weights,
                                     const uint4* mailbox, const Thread& thread, unsigned epoch, Meanwhile meanwhile) {
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
            for (int i = 0; i < M_TILES_PER_WARP; i++)
                mma_k_tile(sums[i], resident_split_fragment(weights, s * M_TILES_PER_WARP + i), columns);
#pragma unroll
            for (int i = 0; i < PACKETS_PER_K_TILE; i++) {
                const int k = 4 * s / WORDS_PER_PACKET + i;  // whose last word the K tile had
                if (k + PACKETS_IN_REGISTERS < PACKETS_PER_LANE && (k * WORDS_PER_PACKET + WORDS_PER_PACKET - 1) / 4 == s)
                    prefetch_packet(mailbox, thread, k + PACKETS_IN_REGISTERS);
            }
        }
        return true;
    }
};
