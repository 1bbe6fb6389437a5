// The weights of a grid's block in the order of the packets (ll_b_fragments.cuh) whose states they are multiplied by, and the
// sizes of both. A block publishes its units of each sequence in PACKETS_PER_BLOCK packets, the last padded. The weights of the
// padding are 0. Of all blocks' packets of a sequence four adjacent ones are for a warp's lanes t, PACKETS_PER_LANE times; then
// those of the next warp follow.
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
static_assert(M_TILES_PER_PASS == M_TILES_PER_WARP, "a pass has all M tiles");
constexpr int FRAGMENTS = M_TILES_PER_PASS * K_TILES_PER_WARP;
typedef ResidentWeights<FRAGMENTS + PRESPLIT_FRAGMENTS, (REG_FRAGMENTS < 4 ? REG_FRAGMENTS : 4)> Weights;

// Where weights are streamed, K tiles are in another order than passes (resident_weights.cuh), which have those that are
// streamed last. Few of them are spread among the others, so that they arrive meanwhile, the first one at the start. More than
// half of all, or of many K tiles, come first, in a loop, IS_ROLLED: of all in a row the code would be too long. Those in
// registers are last then, as registers have no index.
constexpr int STREAMED_K_TILES = Weights::STREAMED_PASSES, RESIDENT_K_TILES = K_TILES_PER_WARP - STREAMED_K_TILES;
constexpr bool IS_ROLLED = STREAMED_K_TILES > 0 && (STREAMED_K_TILES * 2 > K_TILES_PER_WARP || K_TILES_PER_WARP > 24);
static_assert(STREAMED_K_TILES == 0 || PRESPLIT_FRAGMENTS == 0, "both parts of a fragment stay");

__device__ inline constexpr int streamed_before(int k_tile) { return ceil_div(k_tile * STREAMED_K_TILES, K_TILES_PER_WARP); }
__device__ inline constexpr bool is_streamed(int k_tile) {
    return IS_ROLLED ? k_tile < STREAMED_K_TILES : streamed_before(k_tile + 1) > streamed_before(k_tile);
}
// Pass of a K tile that is not streamed.
__device__ inline constexpr int resident_pass(int k_tile) {
    return IS_ROLLED ? K_TILES_PER_WARP - 1 - k_tile : k_tile - streamed_before(k_tile);
}
__device__ inline int k_tile_of_pass(int pass) {
    if (STREAMED_K_TILES == 0) return pass;
    if (IS_ROLLED) return pass < RESIDENT_K_TILES ? K_TILES_PER_WARP - 1 - pass : pass - RESIDENT_K_TILES;
    return pass < RESIDENT_K_TILES ? ceil_div((pass + 1) * K_TILES_PER_WARP, max(RESIDENT_K_TILES, 1)) - 1
                                   : (pass - RESIDENT_K_TILES) * K_TILES_PER_WARP / max(STREAMED_K_TILES, 1);
}

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
        load_a_fragment_packet_order(weight, thread, fragment / M_TILES_PER_PASS, fragment % M_TILES_PER_PASS);
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

// The i-th fragment of a K tile, of those that are streamed in order. IN_REGISTERS: one that is not streamed may be there.
template <bool IN_REGISTERS> __device__ inline SplitAFragment split_fragment(Weights& weights, int k_tile, int i) {
    if (STREAMED_K_TILES == 0) return resident_split_fragment(weights, k_tile * M_TILES_PER_PASS + i);
    if (is_streamed(k_tile)) return split_a_fragment(weights.streamed_fragment(i));
    const int fragment = resident_pass(k_tile) * M_TILES_PER_PASS + i;
    return split_a_fragment(IN_REGISTERS ? weights.at(fragment) : weights.load_smem_fragment(fragment));
}
