// Maths: minGRU and minLSTM after their input product (arXiv 2410.01201, sections 3.1, 3.2, appendix B): h_t =
//   forget_gate h_(t-1) + input_gate g(candidate), forget_gate + input_gate = 1; and its derivative. CELL picks the cell,
//   POSITIVE appendix B's g. A segment of steps is an affine map of the state, and so is the composition of two (Blelloch,
//   "Prefix sums and their applications", 1990).
// Layout: of Params (below), by field. Steps and sequences lie `*_step` and `*_sequence` elements apart, gates and channels
//   side by side.
//   x [T, B, G*H] scalar_t, read: the product (minGRU: z, candidate; minLSTM: f, i, candidate). d_x likewise, written
//   bias [G*H] scalar_t, read, null without BIASED: added to x. output, d_output [T, B, H] scalar_t: forward written, backward
//   read
//   h0, h_n, d_h_n, d_h0 [B, H] scalar_t: the states at both ends; h0 and d_h_n null for zeros, d_h0 for none
//   lengths [B] int64, null for none: a sequence that is over keeps its state, and its output is 0
//   resets [T, B] uint8, null for none: where it is not 0 the step starts from a state of 0
//   tile_status [tiles + groups, blocks of channels, channels, 2] status words, zero at first, SPLIT only
//   No two may alias, but d_x may be x, as a warp alone reads its part of a tile, once, and then writes it. Alignment: of PACK
//   elements, with ALIGNED of 16 bytes in every row; tile_status of two status words.
// Launch: a block has CHANNEL_THREADS * PACK channels of a sequence, a thread PACK of them over STEPS steps, a segment; the
//   segments of a block follow each other in time, a tile. Without SPLIT a block runs through all tiles of its channels; with
//   it blocks take turns, and the launch is cooperative. Dynamic shared memory: STAGES * arrays * STEPS * PACK elements a
//   thread, where arrays are G forward and G + 2 backward.
// Cost: reads G + writes 1 value an element and step, backward reads G + 2 and writes G; SPLIT two words a channel and tile
//   more.
// Limits: T and G * B * H below 2^30, to any number of elements; offsets are 64-bit. PACK is 2 only in 16 bits.
// Order: a tile's segments exchange maps in shared memory, in two buffers by turns, so one barrier suffices without SPLIT. With
//   it a tile publishes its map, the last of each group of tiles that of its group, and every tile looks back: it composes the
//   maps of the groups and then of the tiles before it, in the order of time, so sums are the same in every run. A published
//   status word is never 0 and valid by itself, so relaxed loads and stores suffice. A block waits only for tiles of an earlier
//   turn or of another block in this one, which are published before any block waits for what comes after them.
#include "ecornn/rnn/min_cell.cuh"
#include "tile_scan.cuh"

// A pre-activation with which a step is the identity map: any input gate times a candidate of 0 is 0.
__device__ inline vec_acc_t identity_input(int gate) {
    const acc_t infinity = acc_from_bits(INF_BITS);
    const acc_t value = gate == GATES - 1 ? 0 : CELL == MINLSTM && gate == 0 ? infinity : -infinity;
    vec_acc_t vector;
    for (int p = 0; p < PACK; ++p) vector.data[p] = value;
    return vector;
}

__device__ inline void store(scalar_t* to, const vec_acc_t& values) { *(vec_t*)to = narrow_all(values); }
// PACK elements of a vector over channels, 0 for none.
__device__ inline vec_acc_t load_vector(const scalar_t* source, bool is_inside, offset index) {
    vec_acc_t vector;
    for (int p = 0; p < PACK; ++p) vector.data[p] = source && is_inside ? widen(source[index + p]) : 0;
    return vector;
}

// A thread's prefetched inputs of a segment, by array and step: the gates and, backward, what follows.
template <int ARRAYS>
struct SmemStage {
    vec_t (*values)[THREADS];
    __device__ SmemStage(int stage) : values((vec_t(*)[THREADS])dynamic_shared + stage * ARRAYS * STEPS) {}
    __device__ vec_t& vector(int array, int step) const { return values[array * STEPS + step][threadIdx.x]; }
    __device__ void copy(int array, const ThreadTile& tile, const StridedTensor<const scalar_t>& rows, offset column,
                         int later) const {
        tile.copy(values + array * STEPS, rows, column, later);
    }
};

// The pre-activations of a segment, and which steps have a reset.
struct GateTile {
    vec_acc_t bias[GATES];
    bool has_reset[STEPS];

    template <int ARRAYS>
    __device__ static void copy(const SmemStage<ARRAYS>& stage, const ThreadTile& tile,
                                const StridedTensor<const scalar_t>& rows) {
        for (int gate = 0; gate < GATES; ++gate) stage.copy(gate, tile, rows, gate * tile.hidden, 0);
    }
    __device__ GateTile(const ThreadTile& tile, const scalar_t* bias_data, const StridedTensor<const unsigned char>& resets) {
        for (int gate = 0; gate < GATES; ++gate)
            if (BIASED) bias[gate] = load_vector(bias_data, tile.is_inside, gate * tile.hidden + tile.channel);
#pragma unroll
        for (int i = 0; i < STEPS; ++i)
            has_reset[i] = MASKED && resets.start && i < tile.count() && *tile.at(resets, tile.first_step + i);
    }
    // Pads the steps beyond the last with identity maps.
    template <int ARRAYS>
    __device__ static void pad_with_identity(const SmemStage<ARRAYS>& stage, const ThreadTile& tile) {
        for (int i = tile.count(); i < STEPS; ++i)
            for (int gate = 0; gate < GATES; ++gate) stage.vector(gate, i) = narrow_all(identity_input(gate));
    }
    // Loads the pre-activations of a step, by channel.
    template <int ARRAYS>
    __device__ void load_gates(const SmemStage<ARRAYS>& stage, int i, acc_t (*preactivations)[GATES]) const {
        for (int gate = 0; gate < GATES; ++gate) {
            const vec_acc_t values = widen_all(stage.vector(gate, i));
            for (int p = 0; p < PACK; ++p)
                preactivations[p][gate] = BIASED ? values.data[p] + bias[gate].data[p] : values.data[p];
        }
    }
};

// Values of a thread for its steps and channels.
struct PerItem {
    acc_t data[STEPS][PACK];
};

// The steps of one thread's segment, each an affine map.
struct ThreadSegment {
    PerItem scale, shift;

    __device__ void set(int i, int p, bool is_alive, bool has_reset, acc_t step_scale, acc_t step_shift) {
        // Steps beyond the last are the identity by themselves, unless a bias is added to them.
        const bool is_applied = !(MASKED || BIASED) || is_alive;
        scale.data[i][p] = !is_applied ? 1 : MASKED && has_reset ? -(acc_t)0 : step_scale;
        shift.data[i][p] = is_applied ? step_shift : 0;
    }
    __device__ acc_t apply_step(int i, int p, acc_t state) const {
        return apply({scale.data[i][p], shift.data[i][p]}, state);
    }
    __device__ ThreadMaps summary() const {
        ThreadMaps maps;
        for (int p = 0; p < PACK; ++p) {
            Affine map = {1, 0};
            bool has_reset = false, is_positive = true;
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                has_reset |= is_reset(scale.data[i][p]);
                map = {map.scale * scale.data[i][p], apply_step(i, p, map.shift)};
            }
            if (has_reset) {
                map.scale = -(acc_t)0;
            } else if (map.scale == 0) {  // underflowed, or one was 0
                for (int i = 0; i < STEPS; ++i) is_positive &= scale.data[i][p] > 0;
                map.scale = is_positive ? DENORM_MIN : 0;
            }
            maps.of[p] = map;
        }
        return maps;
    }
};

#if !BACKWARD
struct Params {
    StridedTensor<const scalar_t> x;
    const scalar_t *bias, *h0;
    StridedTensor<scalar_t> output;
    scalar_t* h_n;
    const offset* lengths;
    StridedTensor<const unsigned char> resets;
    status_word* tile_status;
    int steps, batch, hidden, is_reverse, tiles, group_bits;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

struct Forward {
    typedef SmemStage<GATES> Ahead;
    typedef ThreadSegment Steps;
    const Params& params;
    const TileScheduler& block;

    __device__ ThreadTile place(const TileIndex& job) const {
        return ThreadTile(params.lengths, block, job, params.steps, params.hidden, params.is_reverse);
    }
    __device__ vec_acc_t start(const ThreadTile& tile) const {
        return load_vector(params.h0, tile.is_inside, tile.state_offset());
    }
    __device__ static Ahead ahead(int stage) { return Ahead(stage); }
    __device__ void load(const Ahead& stage, const ThreadTile& tile) const { GateTile::copy(stage, tile, params.x); }
    __device__ Steps steps(const Ahead& stage, const ThreadTile& tile) const {
        Steps segment;
        const GateTile gate_tile(tile, params.bias, params.resets);
        if (!tile.is_full_tile(0)) GateTile::pad_with_identity(stage, tile);
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            acc_t gate_inputs[PACK][GATES];
            gate_tile.load_gates(stage, i, gate_inputs);
            for (int p = 0; p < PACK; ++p) {
                const Gates gates = make_gates(gate_inputs[p]);
                const acc_t input = gates.input_gate * candidate(gate_inputs[p][GATES - 1]);
                segment.set(i, p, tile.is_alive(tile.first_step + i), gate_tile.has_reset[i], gates.forget_gate, input);
            }
        }
        return segment;
    }
    __device__ void store_outputs(const Steps& steps, const ThreadTile& tile, vec_acc_t state) const {
        if (tile.is_full_tile(0))
            store_steps<true>(steps, tile, state);
        else
            store_steps<false>(steps, tile, state);
        if (tile.is_inside && tile.first_step < params.steps && params.steps <= tile.first_step + STEPS)
            store(params.h_n + tile.state_offset(), state);
    }
    template <bool IS_WHOLE>
    __device__ void store_steps(const Steps& steps, const ThreadTile& tile, vec_acc_t& state) const {
        scalar_t* target = tile.at(params.output, tile.first_step) + tile.channel;
        const int count = tile.count();
#pragma unroll
        for (int i = 0; i < STEPS; ++i, target += tile.stride(params.output)) {
            vec_acc_t out;
            for (int p = 0; p < PACK; ++p) {
                state.data[p] = steps.apply_step(i, p, state.data[p]);
                out.data[p] = !MASKED || tile.is_alive(tile.first_step + i) ? state.data[p] : 0;
            }
            if (IS_WHOLE || i < count) store(target, out);
        }
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) scan_forward(const __grid_constant__ Params params) {
    const TileScheduler block(params.tile_status, params.batch, params.hidden, params.tiles, params.group_bits);
    scan_tiles(Forward{params, block}, block);
}

#else
struct Params {
    StridedTensor<const scalar_t> x;
    const scalar_t *bias, *h0;
    StridedTensor<const scalar_t> output, d_output;
    const scalar_t* d_h_n;
    StridedTensor<scalar_t> d_x;
    scalar_t* d_h0;
    const offset* lengths;
    StridedTensor<const unsigned char> resets;
    status_word* tile_status;
    int steps, batch, hidden, is_reverse, tiles, group_bits;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

// Scanned is the gradient of the state before a step: forget_gate times that of the state after it.
struct Backward {
    enum { H_BEFORE = GATES, OUTPUT_GRADIENT };
    typedef SmemStage<GATES + 2> Ahead;
    struct Steps : ThreadSegment {
        PerItem local_gradients[GATES], output_gradient;
    };
    const Params& params;
    const TileScheduler& block;

    __device__ ThreadTile place(const TileIndex& job) const {
        return ThreadTile(params.lengths, block, job, params.steps, params.hidden, !params.is_reverse);
    }
    __device__ vec_acc_t start(const ThreadTile& tile) const {
        return load_vector(params.d_h_n, tile.is_inside, tile.state_offset());
    }
    __device__ static Ahead ahead(int stage) { return Ahead(stage); }
    __device__ void load(const Ahead& stage, const ThreadTile& tile) const {
        GateTile::copy(stage, tile, params.x);
        stage.copy(H_BEFORE, tile, params.output, 0, 1);
        stage.copy(OUTPUT_GRADIENT, tile, params.d_output, 0, 0);
    }
    // The state before a sequence's first step is h0; steps beyond the last have an output gradient of 0.
    __device__ void pad_with_identity(const Ahead& stage, const ThreadTile& tile) const {
        GateTile::pad_with_identity(stage, tile);
        const vec_t h0_vector = narrow_all(load_vector(params.h0, tile.is_inside, tile.state_offset()));
        for (int i = 0; i < STEPS; ++i) {
            if (i >= tile.count()) stage.vector(OUTPUT_GRADIENT, i) = narrow_all(vec_acc_t());
            if (i >= tile.count() || !tile.is_alive(tile.first_step + i + 1)) stage.vector(H_BEFORE, i) = h0_vector;
        }
    }
    __device__ Steps steps(const Ahead& stage, const ThreadTile& tile) const {
        Steps segment;
        const GateTile gate_tile(tile, params.bias, params.resets);
        if (MASKED || !tile.is_full_tile(1)) pad_with_identity(stage, tile);
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            acc_t gate_inputs[PACK][GATES], local_gradients[GATES];
            gate_tile.load_gates(stage, i, gate_inputs);
            const vec_acc_t h_before = widen_all(stage.vector(H_BEFORE, i));
            const vec_acc_t output_gradient = widen_all(stage.vector(OUTPUT_GRADIENT, i));
            const bool is_alive = tile.is_alive(tile.first_step + i), has_reset = gate_tile.has_reset[i];
            for (int p = 0; p < PACK; ++p) {
                const Gates gates = make_gates(gate_inputs[p]);
                cell_local_gradients(gate_inputs[p], gates, has_reset ? 0 : h_before.data[p], local_gradients);
                for (int gate = 0; gate < GATES; ++gate) segment.local_gradients[gate].data[i][p] = local_gradients[gate];
                segment.output_gradient.data[i][p] = !MASKED || is_alive ? output_gradient.data[p] : 0;
                segment.set(i, p, is_alive, has_reset, gates.forget_gate,
                            has_reset ? 0 : gates.forget_gate * segment.output_gradient.data[i][p]);
            }
        }
        return segment;
    }
    __device__ void store_outputs(const Steps& steps, const ThreadTile& tile, vec_acc_t dh_carry) const {
        scalar_t* target = tile.at(params.d_x, tile.first_step) + tile.channel;
        const int count = tile.count();
#pragma unroll
        for (int i = 0; i < STEPS; ++i, target += tile.stride(params.d_x)) {
            vec_acc_t d_gates[GATES];
            for (int p = 0; p < PACK; ++p) {
                const acc_t dh = steps.output_gradient.data[i][p] + dh_carry.data[p];
                dh_carry.data[p] = steps.apply_step(i, p, dh_carry.data[p]);
                for (int gate = 0; gate < GATES; ++gate)
                    d_gates[gate].data[p] =
                        !MASKED || tile.is_alive(tile.first_step + i) ? dh * steps.local_gradients[gate].data[i][p] : 0;
            }
            if (i < count)
                for (int gate = 0; gate < GATES; ++gate) store(target + gate * params.hidden, d_gates[gate]);
        }
        if (params.d_h0 && count && params.steps <= tile.first_step + STEPS) store(params.d_h0 + tile.state_offset(), dh_carry);
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) scan_backward(const __grid_constant__ Params params) {
    const TileScheduler block(params.tile_status, params.batch, params.hidden, params.tiles, params.group_bits);
    scan_tiles(Backward{params, block}, block);
}
#endif
