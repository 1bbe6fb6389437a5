// Packets of 16 bytes that blocks of a grid publish to each other through global memory, and their reader. A packet carries its
// own flag, the epoch, which shows a reader that it is valid: the low-latency protocol (NCCL's LL128, MSCCL++'s LL16Packet).
#pragma once
#include "ecornn/ptx/ld_st_128.cuh"
#include "ecornn/ptx/spin_wait.cuh"

// Three words, and the epoch.
struct LL16Packet {
    static constexpr int NUM_WORDS = 3;
    __device__ static uint4 pack(const unsigned* words, unsigned epoch) { return {words[0], words[1], words[2], epoch}; }
    __device__ static bool is_valid(const uint4& packet, unsigned epoch) { return packet.w == epoch; }
    __device__ static unsigned word(const uint4& packet, int i) { return i == 0 ? packet.x : i == 1 ? packet.y : packet.z; }
};

// Reads a tile's NUM_PACKETS packets by NUM_THREADS of a block's threads. Each has up to MAX_IN_FLIGHT of them in flight, of
// which it prefetches up to MAX_PREFETCHED.
template <typename Packet, int NUM_PACKETS, int MAX_PREFETCHED, int NUM_THREADS, int MAX_IN_FLIGHT = 8> struct PacketReader {
    static constexpr int PER_THREAD = (NUM_PACKETS + NUM_THREADS - 1) / NUM_THREADS;
    static constexpr int IN_FLIGHT = PER_THREAD < MAX_IN_FLIGHT ? PER_THREAD : MAX_IN_FLIGHT;
    static constexpr int ROUNDS = (PER_THREAD + IN_FLIGHT - 1) / IN_FLIGHT;
    static constexpr int PREFETCHED = IN_FLIGHT < MAX_PREFETCHED ? IN_FLIGHT : MAX_PREFETCHED;
    uint4 packets[IN_FLIGHT];

    // Loads the thread's packets from `first` on, of them those from FROM to before TO, whether they are valid or not.
    template <int FROM, int TO> __device__ void prefetch(const uint4* mailbox, int first) {
#pragma unroll
        for (int i = FROM; i < TO; i++)
            packets[i] = first + i * NUM_THREADS < NUM_PACKETS ? ld_relaxed_b128(mailbox + first + i * NUM_THREADS) : uint4{};
    }
    __device__ void prefetch_first(const uint4* mailbox, int thread) { prefetch<0, PREFETCHED>(mailbox, thread); }

    // After prefetch_first: calls store(index, packet) for each packet once it is valid. By whole warps. False on a timeout.
    template <typename Store> __device__ bool receive(const uint4* mailbox, int thread, unsigned epoch, Store store) {
        prefetch<PREFETCHED, IN_FLIGHT>(mailbox, thread);
        int first = thread;
#pragma unroll 1
        for (int round = 0; round < ROUNDS; round++) {
            if (round > 0) prefetch<0, IN_FLIGHT>(mailbox, first);
            const bool are_valid = spin_until_warp([&] {
                bool are_all_valid = true;
#pragma unroll
                for (int i = 0; i < IN_FLIGHT; i++)
                    are_all_valid &= first + i * NUM_THREADS >= NUM_PACKETS || Packet::is_valid(packets[i], epoch);
#pragma unroll
                for (int i = 0; i < IN_FLIGHT; i++) {
                    const bool is_missing = first + i * NUM_THREADS < NUM_PACKETS && !Packet::is_valid(packets[i], epoch);
                    if (IN_FLIGHT <= 8) ld_relaxed_b128_if(packets[i], mailbox + first + i * NUM_THREADS, is_missing);
                    else if (is_missing) packets[i] = ld_relaxed_b128(mailbox + first + i * NUM_THREADS);  // in fewer registers
                }
                return are_all_valid;
            });
            if (!are_valid) return false;
#pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++)
                if (first + i * NUM_THREADS < NUM_PACKETS) store(first + i * NUM_THREADS, packets[i]);
            first += IN_FLIGHT * NUM_THREADS;
        }
        return true;
    }
};
