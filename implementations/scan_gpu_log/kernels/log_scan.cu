// Maths: minGRU and minLSTM with a positive candidate after their product, in log space (arXiv 2410.01201, app. B): a step is
//   the map h -> e^s h + e^t (log_scale s, log_shift t), two of them (s1 + s2, log(e^(s2 + t1) + e^t2)). All maps from the
//   first step to each by Blelloch's up-sweep and down-sweep ("Prefix sums and their applications", 1990, section 1.2).
//   h_t = e^s h0 + e^t in linear space, so that h0 may have either sign. Logarithms of pre-activations directly.
// Layout: of Params (below), by field. Steps and sequences lie `*_step` and `*_sequence` elements apart, gates and channels
//   side by side.
//   x [T, B, G*H] scalar_t, read: the product (minGRU: z, candidate; minLSTM: f, i, candidate)
//   bias [G*H] scalar_t, read, null for none: added to x. output [T, B, H] scalar_t, written
//   h0, h_n [B, H] scalar_t, read and written: the states at both ends; h0 null for zeros
//   lengths [B] int64, read, null for none: a sequence that is over keeps its state, and its output is 0
//   No two may alias. Alignment: of the element.
// Launch: a block of THREADS has CHANNELS_PER_BLOCK channels of a sequence and runs through time in tiles of TILE steps, a
//   power of 2.
//   Static shared memory: (TILE + 1) * CHANNELS_PER_BLOCK maps, of 4 values COMPENSATED, else of 2. ceil(H /
//   CHANNELS_PER_BLOCK) * B blocks.
// Cost: reads G + writes 1 value an element and step; two compositions, each an exponential and a logarithm.
// Limits: T and G * B * H below 2^30; offsets are 64-bit. Two barriers for each doubling of TILE.
// Order: a barrier between sweeps' levels, at which every thread of a block arrives alike often. The carry is injected at the
//   root of the tree, in place of the identity: a tile's map is composed in an order that T and TILE alone decide.
#include "log_number.cuh"

typedef long long offset;

// A block's channels of one sequence, and the order in which its steps are scanned.
struct BlockChannels {
    int sequence, first_channel, steps, hidden;
    bool is_reverse;
    offset length;

    __device__ BlockChannels(const offset* lengths, int steps, int hidden, bool is_reverse)
        : steps(steps), hidden(hidden), is_reverse(is_reverse) {
        const int blocks_per_sequence = (hidden + CHANNELS_PER_BLOCK - 1) / CHANNELS_PER_BLOCK;
        sequence = blockIdx.x / blocks_per_sequence;
        first_channel = blockIdx.x % blocks_per_sequence * CHANNELS_PER_BLOCK;
        length = lengths ? lengths[sequence] : steps;
    }
    __device__ int row(int step) const { return is_reverse ? steps - 1 - step : step; }
    __device__ bool is_inside(int lane) const { return first_channel + lane < hidden; }
    __device__ bool is_active(int step) const { return step < steps && row(step) < length; }
    __device__ offset state_offset(int lane) const { return (offset)sequence * hidden + first_channel + lane; }
    __device__ offset row_offset(int step, int lane, offset step_stride, offset sequence_stride) const {
        return sequence * sequence_stride + row(step) * step_stride + first_channel + lane;
    }
};

// The maps of a tile's steps, and of all steps before it.
struct Tile {
    Map maps[TILE][CHANNELS_PER_BLOCK], carry[CHANNELS_PER_BLOCK];

    // Calls `fn(node, lane)` for each of `nodes` nodes and each channel, the threads side by side.
    template <typename Fn>
    __device__ static void for_each_node(int nodes, Fn fn) {
        for (int i = threadIdx.x; i < nodes * CHANNELS_PER_BLOCK; i += THREADS)
            fn(i / CHANNELS_PER_BLOCK, i % CHANNELS_PER_BLOCK);
    }
    // Leaves in each node's last step the composition of its steps.
    __device__ void sweep_up() {
        for (int half = 1; half < TILE; half *= 2) {
            for_each_node(TILE / 2 / half, [&](int node, int lane) {
                const int last = (node + 1) * 2 * half - 1;
                maps[last][lane] = compose(maps[last - half][lane], maps[last][lane]);
            });
            __syncthreads();
        }
    }
    // Injects the carry at the root, and replaces it by that of the next tile.
    __device__ void inject_carry() {
        for_each_node(1, [&](int, int lane) {
            const Map before = carry[lane];
            carry[lane] = compose(before, maps[TILE - 1][lane]);
            maps[TILE - 1][lane] = before;
        });
        __syncthreads();
    }
    // Leaves in each step its exclusive prefix: the composition of all before it.
    __device__ void sweep_down() {
        for (int half = TILE / 2; half > 0; half /= 2) {
            for_each_node(TILE / 2 / half, [&](int node, int lane) {
                const int last = (node + 1) * 2 * half - 1;
                const Map left = maps[last - half][lane], before = maps[last][lane];
                maps[last - half][lane] = before;
                maps[last][lane] = compose(before, left);
            });
            __syncthreads();
        }
    }
    __device__ Map inclusive_prefix(int step, int lane) const { return step + 1 < TILE ? maps[step + 1][lane] : carry[lane]; }
};

struct Params {
    const scalar_t* x;
    offset x_step, x_sequence;
    const scalar_t *bias, *h0;
    scalar_t* output;
    offset output_step, output_sequence;
    scalar_t* h_n;
    const offset* lengths;
    int steps, hidden, is_reverse;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "the host packs other parameters");

extern "C" __global__ void __launch_bounds__(THREADS) scan_log_forward(const __grid_constant__ Params params) {
    __shared__ Tile tile;
    const int steps = params.steps, hidden = params.hidden;
    const BlockChannels channels(params.lengths, steps, hidden, params.is_reverse);
    Tile::for_each_node(1, [&](int, int lane) { tile.carry[lane] = identity_map(); });
    for (int start = 0; start < steps; start += TILE) {
        Tile::for_each_node(TILE, [&](int step, int lane) {
            Map map = identity_map();
            if (channels.is_inside(lane) && channels.is_active(start + step)) {
                const scalar_t* source = params.x + channels.row_offset(start + step, lane, params.x_step, params.x_sequence);
                acc_t preactivations[GATES];
                for (int gate = 0; gate < GATES; ++gate) {
                    const int channel = channels.first_channel + lane;
                    const acc_t bias_value = params.bias ? widen(params.bias[gate * hidden + channel]) : 0;
                    preactivations[gate] = widen(source[gate * hidden]) + bias_value;
                }
                map = make_map(preactivations);
            }
            tile.maps[step][lane] = map;
        });
        __syncthreads();
        tile.sweep_up();
        tile.inject_carry();
        tile.sweep_down();
        Tile::for_each_node(TILE, [&](int step, int lane) {
            if (!channels.is_inside(lane) || start + step >= steps) return;
            const acc_t h0 = params.h0 ? widen(params.h0[channels.state_offset(lane)]) : 0;
            const scalar_t state = narrow(apply_map(tile.inclusive_prefix(step, lane), h0));
            scalar_t* target =
                params.output + channels.row_offset(start + step, lane, params.output_step, params.output_sequence);
            *target = channels.is_active(start + step) ? state : narrow(0);
            if (start + step == steps - 1) params.h_n[channels.state_offset(lane)] = state;
        });
        __syncthreads();
    }
}
