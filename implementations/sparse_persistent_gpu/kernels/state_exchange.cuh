// State exchange between blocks of a grid that multiply pruned rows: of every hidden unit VALUES_PER_UNIT values for each of a
// tile's SEQUENCES, those of a unit adjacent. All blocks receive them in shared memory, or each of a cluster those of one
// segment of the blocks. A position is one value of all sequences: that many bytes are read at once. Blocks publish packets
// that carry an epoch as their flag (ll_packet.cuh; Lamport timestamps), or, without TIMESTAMPS, arrive at a counter once a
// tile and step.
#pragma once
#include "ecornn/common/ceil_div.cuh"
#include "ecornn/common/zero_smem.cuh"
#include "ecornn/rnn/ll_packet.cuh"
#include "ecornn/rnn/rnn_cell.cuh"
#include "ecornn/ptx/named_barrier.cuh"

constexpr int BLOCK_THREADS = 512, RECEIVER_THREADS = BLOCK_THREADS - POINTWISE_THREADS;  // the latter have no states
constexpr int POSITION_BYTES = SEQUENCES * (int)sizeof(scalar_t);
constexpr int BLOCKS_PER_SEGMENT = BLOCKS / CLUSTER;  // blocks that a block receives from

enum NamedBarrier {
    StatesReady = 1,   // among the pointwise threads: the block's own values of a tile are in shared memory
    AllPublished = 2,  // among the pointwise threads, without TIMESTAMPS: all of them have published
    Published = 3      // the pointwise threads arrive when they have published; the receiver threads wait
};

// Tiles of a group of blocks whose sequences begin at `first_sequence`.
__device__ inline int num_tiles(int first_sequence, int batch) {
    return min(TILES, (batch - first_sequence + SEQUENCES - 1) / SEQUENCES);
}

template <int VALUES_PER_UNIT> struct alignas(16) States {
    static constexpr int BANK_GROUPS = 128 / POSITION_BYTES;  // positions that are in different banks, or in one word of one
    // The first of BANK_GROUPS positions that stay 0: they are no unit's.
    static constexpr int ZERO_POSITION = ceil_div(BLOCKS_PER_SEGMENT * UNITS * VALUES_PER_UNIT, BANK_GROUPS) * BANK_GROUPS;
    scalar_t data[(ZERO_POSITION + BANK_GROUPS) * SEQUENCES];
};

// A tile's values of a block's own units, as it publishes them.
template <int VALUES_PER_UNIT> struct alignas(16) OutgoingStates {
    static constexpr int VALUES = UNITS * VALUES_PER_UNIT * SEQUENCES, VALUES_PER_PACKET = 12 / (int)sizeof(scalar_t);
    static constexpr int PACKETS = ceil_div(VALUES, VALUES_PER_PACKET);
    scalar_t values[PACKETS * VALUES_PER_PACKET];

    __device__ scalar_t& at(int unit, int column, int value = 0) {
        return values[(unit % UNITS * VALUES_PER_UNIT + value) * SEQUENCES + column];
    }

    // packets: from the block's first one on.
    __device__ void publish_states(uint4* packets, int thread, unsigned epoch) const {
        for (int i = thread; i < PACKETS; i += POINTWISE_THREADS) {
            const unsigned* words = (const unsigned*)(values + i * VALUES_PER_PACKET);
            st_relaxed_b128(packets + i, LL16Packet::pack(words, epoch));
        }
    }

    // index: among all packets that the block receives, one sender's after the other's.
    __device__ static void unpack_into(States<VALUES_PER_UNIT>& states, unsigned index, const uint4& packet) {
        constexpr int WORDS = VALUES * (int)sizeof(scalar_t) / 4, IS_WHOLE = VALUES * sizeof(scalar_t) % 4 == 0;
        const unsigned block = index / PACKETS, first_word = index % PACKETS * LL16Packet::NUM_WORDS;
        const unsigned words[3] = {packet.x, packet.y, packet.z};
#pragma unroll
        for (int i = 0; i < VALUES_PER_PACKET && !IS_WHOLE; i++)
            if (index % PACKETS * VALUES_PER_PACKET + i < VALUES)
                states.data[block * VALUES + index % PACKETS * VALUES_PER_PACKET + i] = ((const scalar_t*)words)[i];
#pragma unroll
        for (int i = 0; i < LL16Packet::NUM_WORDS && IS_WHOLE; i++)
            if (WORDS % LL16Packet::NUM_WORDS == 0 || first_word + i < WORDS)
                ((unsigned*)states.data)[block * WORDS + first_word + i] = words[i];
    }
};

// Mailboxes of the tiles of all groups of blocks: two buffers of packets a tile, by epoch % 2, then a counter a tile.
template <int VALUES_PER_UNIT> struct Mailbox {
    typedef OutgoingStates<VALUES_PER_UNIT> Outgoing;
    static constexpr int PACKETS_PER_TILE = BLOCKS * Outgoing::PACKETS;
    static constexpr int RECEIVED_PACKETS = BLOCKS_PER_SEGMENT * Outgoing::PACKETS;
    unsigned first_sent, first_received;  // of a buffer's packets, that the block sends and receives
    uint4* packets;
    unsigned* counters;
    __device__ Mailbox(uint4* all, int tiles, int block)
        : first_sent(block % BLOCKS * Outgoing::PACKETS), first_received(block % CLUSTER * RECEIVED_PACKETS),
          packets(all), counters((unsigned*)(all + tiles * 2u * PACKETS_PER_TILE)) {}
    __device__ uint4* buffer(int tile, unsigned epoch) const { return packets + (tile * 2u + epoch % 2) * PACKETS_PER_TILE; }
    __device__ unsigned* counter(int tile) const { return counters + tile * 4; }
};

#if TIMESTAMPS
typedef LL16Packet StatePacket;
#else
struct StatePacket : LL16Packet {
    __device__ static bool is_valid(const uint4&, unsigned) { return true; }
};
#endif

// Publishes a tile's values, by POINTWISE_THREADS threads, numbered by `thread`.
template <int VALUES_PER_UNIT>
__device__ inline void publish_states(const OutgoingStates<VALUES_PER_UNIT>& outgoing, const Mailbox<VALUES_PER_UNIT>& mailbox,
                                      int tile, unsigned epoch, int thread) {
    outgoing.publish_states(mailbox.buffer(tile, epoch) + mailbox.first_sent, thread, epoch);
#if !TIMESTAMPS
    named_barrier_sync(NamedBarrier::AllPublished, POINTWISE_THREADS);
    if (thread == 0) red_add_release(mailbox.counter(tile));
#endif
}

// Receives a tile's packets of all blocks, or of a segment's, by RECEIVER_THREADS threads, numbered by `thread`. times: how
// often each block has published that tile by then. False after a timeout.
template <int VALUES_PER_UNIT>
__device__ inline bool receive_states(States<VALUES_PER_UNIT>& states, const Mailbox<VALUES_PER_UNIT>& mailbox, int tile,
                                      unsigned epoch, unsigned times, int thread) {
    typedef OutgoingStates<VALUES_PER_UNIT> Outgoing;
#if !TIMESTAMPS
    const unsigned* counter = mailbox.counter(tile);
    if (!spin_until_warp([&] { return ld_acquire(counter) >= times * BLOCKS; })) return false;
#endif
    PacketReader<StatePacket, Mailbox<VALUES_PER_UNIT>::RECEIVED_PACKETS, 0, RECEIVER_THREADS> reader;
    return reader.receive(mailbox.buffer(tile, epoch) + mailbox.first_received, thread, epoch,
                         [&](unsigned index, const uint4& packet) { Outgoing::unpack_into(states, index, packet); });
}
