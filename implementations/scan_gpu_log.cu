// Maths: minGRU and minLSTM with a positive candidate after their product, in log space (arXiv 2410.01201, app. B): a step is
//   the map h -> e^keep h + e^take, two of them (keep1 + keep2, log(e^(keep2 + take1) + e^take2)). All maps from the first step
//   to each by Blelloch's up-sweep and down-sweep ("Prefix sums and their applications", 1990, section 1.2).
//   h_t = e^keep first + e^take in linear space, so that `first` may have either sign. Logarithms of pre-activations directly.
// Layout: steps and sequences lie `*_step` and `*_sequence` elements apart, gates and channels side by side.
//   x [T, B, G*H] scalar_t, read: the product (minGRU: z, candidate; minLSTM: f, i, candidate)
//   bias [G*H] scalar_t, read, null for none: added to x. output [T, B, H] scalar_t, written
//   first, final [B, H] scalar_t, read and written: the states at both ends; first null for zeros
//   lengths [B] int64, read, null for none: a sequence that is over keeps its state, and its output is 0
//   No two may alias. Alignment: of the element.
// Launch: a block of THREADS has ACROSS channels of a sequence and runs through time in tiles of TILE steps, a power of 2.
//   Static shared memory: (TILE + 1) * ACROSS maps, of 4 values COMPENSATED, else of 2. ceil(H / ACROSS) * B blocks.
// Cost: reads G + writes 1 value an element and step; two compositions, each an exponential and a logarithm.
// Limits: T and G * B * H below 2^30; offsets are 64-bit. Two barriers for each doubling of TILE.
// Order: a barrier between sweeps' levels, at which every thread of a block arrives alike often. The carry is put in at the
//   root of the tree, in place of the identity: what a tile does is composed in an order that T and TILE alone decide.
#include "log_space.cuh"

typedef long long offset;

// A block's channels of one sequence, and the order in which its steps are scanned.
struct Place {
    int sequence, first_channel, steps, hidden;
    bool is_reverse;
    offset length;

    __device__ Place(const offset* lengths, int steps, int hidden, bool is_reverse)
        : steps(steps), hidden(hidden), is_reverse(is_reverse) {
        const int across = (hidden + ACROSS - 1) / ACROSS;
        sequence = blockIdx.x / across;
        first_channel = blockIdx.x % across * ACROSS;
        length = lengths ? lengths[sequence] : steps;
    }
    __device__ int row(int step) const { return is_reverse ? steps - 1 - step : step; }
    __device__ bool is_inside(int lane) const { return first_channel + lane < hidden; }
    __device__ bool is_alive(int step) const { return step < steps && row(step) < length; }
    __device__ offset in_state(int lane) const { return (offset)sequence * hidden + first_channel + lane; }
    __device__ offset in_rows(int step, int lane, offset of_step, offset of_sequence) const {
        return sequence * of_sequence + row(step) * of_step + first_channel + lane;
    }
};

// The maps of a tile's steps, and of all steps before it.
struct Tile {
    Map of[TILE][ACROSS], carry[ACROSS];

    // Calls `task(node, lane)` for each of `nodes` nodes and each channel, the threads side by side.
    template <typename Task>
    __device__ static void each(int nodes, Task task) {
        for (int i = threadIdx.x; i < nodes * ACROSS; i += THREADS) task(i / ACROSS, i % ACROSS);
    }
    // Leaves in each node's last step what its steps come to.
    __device__ void sweep_up() {
        for (int half = 1; half < TILE; half *= 2) {
            each(TILE / 2 / half, [&](int node, int lane) {
                const int last = (node + 1) * 2 * half - 1;
                of[last][lane] = then(of[last - half][lane], of[last][lane]);
            });
            __syncthreads();
        }
    }
    // Puts the carry in at the root, and the new one in its place.
    __device__ void turn() {
        each(1, [&](int, int lane) {
            const Map before = carry[lane];
            carry[lane] = then(before, of[TILE - 1][lane]);
            of[TILE - 1][lane] = before;
        });
        __syncthreads();
    }
    // Leaves in each step what those before it come to.
    __device__ void sweep_down() {
        for (int half = TILE / 2; half > 0; half /= 2) {
            each(TILE / 2 / half, [&](int node, int lane) {
                const int last = (node + 1) * 2 * half - 1;
                const Map left = of[last - half][lane], before = of[last][lane];
                of[last - half][lane] = before;
                of[last][lane] = then(before, left);
            });
            __syncthreads();
        }
    }
    __device__ Map upto(int step, int lane) const { return step + 1 < TILE ? of[step + 1][lane] : carry[lane]; }
};

extern "C" __global__ void __launch_bounds__(THREADS) scan_log_forward(
    const scalar_t* x, offset x_step, offset x_sequence, const scalar_t* bias, const scalar_t* first, scalar_t* output,
    offset output_step, offset output_sequence, scalar_t* final, const offset* lengths, int steps, int hidden, int is_reverse) {
    __shared__ Tile tile;
    const Place at(lengths, steps, hidden, is_reverse);
    Tile::each(1, [&](int, int lane) { tile.carry[lane] = unchanged(); });
    for (int start = 0; start < steps; start += TILE) {
        Tile::each(TILE, [&](int step, int lane) {
            Map map = unchanged();
            if (at.is_inside(lane) && at.is_alive(start + step)) {
                const scalar_t* source = x + at.in_rows(start + step, lane, x_step, x_sequence);
                acc_t given[GATES];
                for (int gate = 0; gate < GATES; ++gate) {
                    const acc_t added = bias ? widen(bias[gate * hidden + at.first_channel + lane]) : 0;
                    given[gate] = widen(source[gate * hidden]) + added;
                }
                map = map_of(given);
            }
            tile.of[step][lane] = map;
        });
        __syncthreads();
        tile.sweep_up();
        tile.turn();
        tile.sweep_down();
        Tile::each(TILE, [&](int step, int lane) {
            if (!at.is_inside(lane) || start + step >= steps) return;
            const acc_t initial = first ? widen(first[at.in_state(lane)]) : 0;
            const scalar_t state = narrow(state_after(tile.upto(step, lane), initial));
            scalar_t* target = output + at.in_rows(start + step, lane, output_step, output_sequence);
            *target = at.is_alive(start + step) ? state : narrow(0);
            if (start + step == steps - 1) final[at.in_state(lane)] = state;
        });
        __syncthreads();
    }
}
