// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL, after the input product, all T steps of one layer and direction in one
//   launch, as persistent_gpu.cu, for W_hh that a cluster has no room for or takes longer with: it stays in the registers and
//   shared memory of as many multiprocessors as there are.
// Layout: as persistent_gpu.cu, but for left_over, in whose place there is
//   handoff [tiles of all groups, 2, ABREAST, OF_EIGHT] of 16 bytes, read and written: all 0 before the launch. A parcel is a part
//   of what a block tells of its units of a sequence, and t + 1, where h_t is what it tells of (heard_columns.cuh).
//   No two may alias. Alignment: of the element; weight: WIDTH bytes; handoff: 16 bytes.
// Launch: cooperative, all blocks at once: a group of BLOCKS blocks for each TILES tiles of 8 * ABREAST sequences, which knows
//   nothing of others; block r of a group owns UNITS hidden units from r * UNITS. Each of its 8 warps multiplies all rows of these
//   by an eighth of the columns, and finds an eighth of their states. TWICE of a warp's parts of split float32 are split once,
//   when they are read, and lie as two. SEQUENCES of a tile are told: all, or as many as there are at all. Shared bytes:
//   Form.shared_bytes.
// Cost: reads G H^2 + T B G H values, writes T B H; 2 T B G H^2 operations. Each block reads 4/3 H values of each sequence a
//   step, of TF32 2/3, and more where UNITS do not fill their parcels. Of an input product as
//   persistent_gpu.cu, for a group in place of a cluster.
// Limits: compute capability 8.0; of W_hh nothing left over; T, B, G * H below 2^30, as persistent_gpu.cu; offsets 64-bit.
// Order: a parcel is written and read as one (grid.cuh), so who sees its number sees it whole. h_(t+1) of a tile takes the place
//   of h_(t-1): who writes it has met its block since all its warps had read h_t, and of that each part was written by a block
//   that had met since all its warps had read h_(t-1). So nobody is still to read what is overwritten, and a reader meets the
//   number it waits for, or that of two steps before, or 0. Sums of a warp are written before that meeting and read after it, and
//   written again after the next one, or with SUMS 1 after one more that follows the product. A warp tells what its own lanes
//   have found. A wait that takes WATCHDOG_NS is given up by all threads of its block at their meeting, and in turn by all
//   blocks of the group. Sums are taken in one order: bit-equal repeats.
//   Of an input product a block's threads read what the same block wrote, and all of it met in between.
#define GATE_THREADS 256
#include "heard_columns.cuh"

#include "input_product.cuh"
#include "jitter.cuh"

// Where registers are few found anew each time it is asked for, so that what follows from it takes none meanwhile.
__device__ inline Thread this_thread(int batch) {
    unsigned number = threadIdx.x, block = blockIdx.x;
    if (8 * HELD + 4 * ABREAST * (ROW_TILES + AT_HAND) > 130) again(number), again(block);  // registers are few
    number %= THREADS;
    return {(int)number,           (int)(number / 32), (int)(number % 32), (int)(block % BLOCKS * UNITS),
            (int)(block / BLOCKS * TILES * WIDE), batch};
}

__device__ inline int tiles_of(const Thread& me) { return min(TILES, (me.batch - me.first_sequence + WIDE - 1) / WIDE); }

// What is told of h_t of a tile.
__device__ inline uint4* place_of(uint4* handoff, const Thread& me, int t, int tile) {
    return handoff + (index)((me.first_sequence / WIDE + tile) * 2 + t % 2) * ABREAST * OF_EIGHT;
}

// Gates' inputs, by threads: in registers only until the product begins, which needs these.
struct Laid {
    unsigned at[STATES][GATES][THREADS];
    __device__ void lay(const Inputs& inputs) {
#pragma unroll
        for (int s = 0; s < STATES; s++)
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) at[s][gate][threadIdx.x] = inputs.at[s][gate];
    }
    __device__ float of(int s, int gate) const { return of_raw(at[s][gate][threadIdx.x]); }
};

struct Shared {
    Own own[TILES];
    Laid inputs;
    Steps steps;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "Form.shared_bytes");

// The initial states, told.
__device__ inline void start(Own& own, const Arrays& arrays, uint4* handoff, const Thread& me, int tile) {
    start_own(own, arrays, me, tile);
    __syncwarp();
    own.tell(place_of(handoff, me, 0, tile), me, 1);
}

// Sums and states of every tile and step, told and written. False where a wait was given up.
__device__ inline bool find_all(Shared& shared, const Arrays& arrays, const Resident& weights, uint4* handoff, int batch) {
    const int tiles = tiles_of(this_thread(batch));
    Walk walk(arrays, this_thread(batch), tiles);
    Inputs inputs = {};
    inputs.read(arrays, walk, 0, 0);
    HeardColumns heard;
    if (TILES > 1) heard.begin(place_of(handoff, this_thread(batch), 0, 0), this_thread(batch));
    int turn = 0;
    for (int t = 0; t < arrays.steps; t++) {
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const Thread me = this_thread(batch);
            const bool is_last = tile + 1 == tiles, is_told = t + 1 < arrays.steps;
            Own& own = shared.own[tile];
            Sums sums[ROW_TILES][ABREAST] = {};
            bool is_stuck = false;
            jitter(t, 0);
            if (TILES == 1) heard.begin(place_of(handoff, me, t, tile), me);
            const auto lay = [&] { shared.inputs.lay(inputs); };
            if (t > 0 || arrays.first_h) is_stuck = !heard.add(sums, weights, place_of(handoff, me, t, tile), me, t + 1, lay);
            else lay();
            if (TILES > 1) heard.begin(place_of(handoff, me, t + is_last, is_last ? 0 : tile + 1), me);
            jitter(t, 1);
            if (SUMS == 1) __syncthreads();
            put(shared.steps, turn, me, [&](int i, int n) -> const Sums& { return sums[i][n]; });
            const Ready ready(shared.steps, shared.inputs, me, tile, arrays.step(t));
            if (__syncthreads_or(is_stuck)) return false;
            jitter(t, 2);
            const Found found(shared.steps, turn, ready, me, tile, own, own);
            __syncwarp();
            jitter(t, 3);
            if (is_told) own.tell(place_of(handoff, me, t + 1, tile), me, t + 2);
            found.write(walk, ready, tile);
            if (!is_told) found.write_final(arrays, shared.steps, ready, me, tile);
            walk.advance(is_last);
            read_next(inputs, walk, arrays, tiles, tile, t);
            turn = (turn + 1) % SUMS;
        }
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) persistent_forward(
    OF_INPUTS const storage* gates, index gates_step, index gates_sequence, const storage* weight, const storage* bias_ih,
    const storage* bias_hh, const storage* first_h, const storage* first_c, storage* output, index output_step,
    index output_sequence, storage* final_h, storage* final_c, const length* lengths, storage* kept, float* cells,
    index row_step, index row_sequence, uint4* handoff, int* status, int steps, int batch, int is_reverse) {
    const Arrays arrays = {gates, weight, bias_ih, bias_hh, first_h, first_c, output, final_h, final_c, kept, cells,
                           gates_step, gates_sequence, output_step, output_sequence, row_step, row_sequence, steps, is_reverse};
#if INPUTS
    multiply_inputs({x, x_step, x_sequence, weight_ih}, arrays, batch);
#endif
    Shared& shared = *(Shared*)block_memory();
    const Thread first = this_thread(batch);
    clear(&shared.own, sizeof(shared.own));
    start(shared.steps, arrays, first, lengths);
    __syncthreads();
    for (int tile = 0; first_h && tile < tiles_of(first); tile++) start(shared.own[tile], arrays, handoff, first, tile);
    jitter(-1, 5);
    Resident weights(shared.steps.room, nullptr, 0,
                     [&](int turn, int i) { return kept_part_of(weight, first, turn * TOGETHER + i); });
    __syncthreads();
    if (!find_all(shared, arrays, weights, handoff, batch)) {
        const Thread me = this_thread(batch);
        *(volatile int*)status = 1;
        give_up(arrays, me, tiles_of(me));
    }
}
