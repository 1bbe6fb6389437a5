// Maths: LSTM, GRU (torch.nn's gate order) or RNN, CELL: LAYERS layers in one direction, all T steps and the input products too, in
//   one launch: each layer multiplies [W_ih | W_hh] by [what is below at t; its own h_(t-1)], a few steps behind the one below.
//   Source: Appleyard et al., Optimizing Performance of Recurrent Neural Networks on GPUs, 2016.
// Layout: x [T, B, INPUTS] storage, read, the input of the first layer: element (t, b, i) at t * x_step + b * x_sequence + i.
//   Of each layer, by its number: weight_ih [G*H, INPUTS, above the first H], weight_hh [G*H, H] storage, read. bias_ih, bias_hh,
//   output, kept, cells: as persistent_gpu.cu, as are lengths and status; each output is read by the layer above.
//   first_h, first_c, final_h, final_c [LAYERS, B, H] storage: as persistent_gpu.cu.
//   told [LAYERS, tile sets, BLOCKS] int32, read and written: all 0 before the launch; the steps that a block has written.
//   No two may alias. Alignment: of the element; x, weights, outputs, and what is between rows of x: WIDTH bytes.
// Launch: a cluster of BLOCKS blocks for each layer and tile set, TILES tiles of 8 sequences, the first layer's clusters first. In
//   a block, beside the warps of persistent_gpu.cu, READERS warps read what is below, each into a buffer of its own, and one tells
//   the layer above. Shared bytes: Wave.shared_bytes.
// Cost: of each layer reads G H (I + H) + T B I values, writes T B H; 2 T B G H (I + H) operations.
// Limits: compute capability 9.0; UNITS a multiple of 16 bytes of storage, nothing of the weights left over; T, B, G * H below
//   2^30; offsets 64-bit. To be fast, not to be right, all clusters run at once: see Order.
// Order: in a cluster as persistent_gpu.cu. Between layers: the gates' warps meet the warp that tells when all have written a step
//   of the output; that warp then says the step's number, releasing (progress.cuh) what all of them wrote before they met. A lane
//   of a reading warp hears, acquiring, the numbers of one block below, and its warp meets before any lane reads. So each value
//   read was written before. Every number is said once, in order, by one thread. Nobody waits for a layer above: a layer can go on
//   when all below it can, and blocks start in their order. A buffer of inputs is read between the meetings FILLED, where its
//   reader has written it, and USED, before which its reader does not write it again. The sums of GRU's W_in x lie with the others.
//   A wait that takes WATCHDOG_NS is given up and nothing more is told, in the block, its cluster and so the layers above.
#define READERS 3
#define INPUT_SLICES (((INPUTS > HIDDEN ? INPUTS : HIDDEN) + SLICE * GROUPS - 1) / (SLICE * GROUPS))  // of a group of warps
#include "cluster_gates.cuh"
#include "progress.cuh"

#define AT_ONCE (WIDTH < 8 ? WIDTH / 2 : 8)  // pieces, on their way to a reading lane
enum { FILLED = 6, USED = FILLED + READERS, WRITTEN = USED + READERS };  // meetings: buffers of inputs; all outputs of a step
static_assert(LEFT_OVER == 0, "all weights are on chip");

struct Shared {
    unsigned long long barriers[2][8];  // a tile's, and the room up to the next 128 bytes
    States states[2][TILES];
    Eight<INPUT_SLICES> inputs[READERS];
    Steps steps;
    int is_stuck;  // some thread has given up a wait: no more is told
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "Wave.shared_bytes");

// What a layer has of its own.
struct Layer {
    const storage *weight_ih, *weight_hh, *bias_ih, *bias_hh;
    storage *output, *kept;
    float* cells;
};

// The input of a layer: rows of so many values. told: of the blocks that write it, null where it was there before.
struct Below {
    const storage* rows;
    index step, sequence;
    int values;
    const int* told;
};

// In place of gate_step.cuh's Inputs: they are among the sums.
struct AmongSums {
    __device__ void read(const Arrays&, const Walk&, int, int) const {}
    __device__ float of(int, int) const { return 0; }
};

// Row i of a warp's sums of GRU's gate n is W_in x so far: it goes where there is a fourth gate in LSTM, and W_hn h starts anew.
__device__ inline void put_apart(Steps& steps, int turn, const Thread& me, Sums (&sums)[ROW_TILES]) {
#pragma unroll
    for (int i = 0; i < ROW_TILES * 2; i++) {
        const int r = sums_row(me, i);
        if (r % GATES != 2) continue;
        float* place = &steps.sums[turn][me.warp % GROUPS][r / GATES][me.lane % 4 * 2 * PER + 3 % PER];
        float* found = &sums[i / 2].at[i % 2 * 2];
        place[0] = found[0], place[PER] = found[1];
        found[0] = found[1] = 0;
    }
}

// The first 8 warps: sums of every tile and step, those of the inputs before the states are waited for.
__device__ inline void multiply_all(Shared& shared, Resident& weights, const Thread& me, int steps, int tiles) {
    bool is_stuck = false;
    int turn = 0, visits = 0, buffer = 0;
    for (int t = 0; t < steps; t++)
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            Sums sums[ROW_TILES] = {};
            meet(FILLED + buffer, THREADS + 32);
            jitter(t, 0);
            add_columns<SLICES_EACH, INPUT_SLICES>(sums, weights, own_columns(shared.inputs[buffer], me.warp % GROUPS, me.lane));
            come(USED + buffer, THREADS + 32);
            is_stuck |= *(volatile int*)&shared.is_stuck;
            if (visits >= 2) meet(EMPTY + turn, ALL);
            const uint4* columns = own_columns(shared.states[t % 2][tile], me.warp % GROUPS, me.lane);
            if (t > 0 && !is_stuck) is_stuck = !wait_for(address_of(&shared.barriers[t % 2][tile]), (t - 1) / 2 % 2);
            if (is_stuck) *(volatile int*)&shared.is_stuck = 1;
            jitter(t, 1);
            if (CELL == GRU) put_apart(shared.steps, turn, me, sums);
            multiply(shared.steps, turn, weights, me, columns, sums);
            jitter(t, 6);
            come(FULL + turn, ALL);
            turn = 1 - turn, visits = visits < 2 ? visits + 1 : 2, buffer = buffer + 1 < READERS ? buffer + 1 : 0;
        }
}

// By a warp: of a tile and step, its first sequence b.
__device__ inline void read(Eight<INPUT_SLICES>& inputs, const Below& below, const Thread& me, int t, int b) {
    constexpr int PIECES_EACH = Eight<INPUT_SLICES>::PIECES_EACH;
#pragma unroll 1
    for (int first = me.lane; first < 8 * PIECES_EACH; first += AT_ONCE * 32) {
        uint4 found[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int place = first + i * 32, column = place / PIECES_EACH;
            const MatrixRow row = {below.rows + t * below.step + (b + column) * below.sequence, column < 8 && b + column < me.batch};
            found[i] = piece_at(row, place % PIECES_EACH * PIECE, below.values);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int place = first + i * 32;
            if (place < 8 * PIECES_EACH) *(uint4*)&inputs.of(place % PIECES_EACH * PIECE, place / PIECES_EACH) = found[i];
        }
    }
}

// One of READERS warps: the inputs of every READERS-th tile and step, as soon as all blocks below have said that they are there.
__device__ inline void read_all(Shared& shared, const Below& below, const Thread& me, int steps, int tiles) {
    Eight<INPUT_SLICES>& inputs = shared.inputs[me.warp];
    const bool hears = below.told && me.lane < BLOCKS;
    bool is_stuck = false, is_first = true;
    int known = 0;
    for (int t = me.warp / tiles, tile = me.warp % tiles; t < steps;) {
        if (hears && !is_stuck && known <= t)
            is_stuck = !wait_until([&] { return (known = heard(below.told + me.lane)) > t; });
        if (is_stuck) *(volatile int*)&shared.is_stuck = 1;
        __syncwarp();
        jitter(t, 7);
        if (!is_first) meet(USED + me.warp, THREADS + 32);
        read(inputs, below, me, t, me.first_sequence + tile * 8);
        __syncwarp();
        jitter(t, 8);
        come(FILLED + me.warp, THREADS + 32);
        is_first = false;
        for (tile += READERS; tile >= tiles; tile -= tiles) t++;
    }
}

// The last warp: says which steps the block has written, as long as all is known.
__device__ inline void tell_all(Shared& shared, int* told, const Thread& me, int steps) {
    for (int t = 0; t < steps; t++) {
        meet(WRITTEN, GATE_THREADS + 32);
        jitter(t, 9);
        if (me.lane == 0 && !*(volatile int*)&shared.is_stuck) say(told, t + 1);
        __syncwarp();
    }
}

#define TAKE(l) const storage *weight_ih_##l, const storage *weight_hh_##l, const storage *bias_ih_##l, \
    const storage *bias_hh_##l, storage *output_##l, storage *kept_##l, float *cells_##l
#define GIVE(l) Layer{weight_ih_##l, weight_hh_##l, bias_ih_##l, bias_hh_##l, output_##l, kept_##l, cells_##l}
#if LAYERS == 2
#define EACH_LAYER(of) of(0), of(1)
#elif LAYERS == 3
#define EACH_LAYER(of) of(0), of(1), of(2)
#else
#define EACH_LAYER(of) of(0), of(1), of(2), of(3)
#endif

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(ALL + 32 * (READERS + 1), 1) persistent_wave(
    const storage* x, index x_step, index x_sequence, EACH_LAYER(TAKE), const storage* first_h, const storage* first_c,
    index output_step, index output_sequence, storage* final_h, storage* final_c, const length* lengths, index row_step,
    index row_sequence, int* told, int* status, int steps, int batch) {
    Shared& shared = *(Shared*)block_memory();
    const int thread = threadIdx.x, rank = rank_in_cluster(), sets = (batch + TILES * 8 - 1) / (TILES * 8);
    const int layer = blockIdx.x / BLOCKS / sets, set = blockIdx.x / BLOCKS % sets;
    const int number = thread < THREADS ? thread : thread < ALL ? thread - THREADS : thread - ALL;
    const Thread me = {number, number / 32, number % 32, rank * UNITS, set * TILES * 8, batch};
    const Layer layers[LAYERS] = {EACH_LAYER(GIVE)};
    Layer own = layers[0];
    Below below = {x, x_step, x_sequence, INPUTS, nullptr};
    const auto told_by = [&](int l) { return told + ((index)l * sets + set) * BLOCKS; };
#pragma unroll
    for (int l = 1; l < LAYERS; l++)
        if (l == layer) own = layers[l], below = {layers[l - 1].output, output_step, output_sequence, HIDDEN, told_by(l - 1)};
    const index states = (index)layer * batch * HIDDEN;
    const auto of_layer = [&](auto* all) { return all ? all + states : nullptr; };
    const Arrays arrays = {nullptr, own.weight_hh, own.bias_ih, own.bias_hh, of_layer(first_h), of_layer(first_c), own.output,
                           of_layer(final_h), of_layer(final_c), own.kept, own.cells, 0, 0, output_step, output_sequence,
                           row_step, row_sequence, steps, 0};
    const int tiles = min(TILES, (batch - me.first_sequence + 7) / 8);
    set_up(shared, 10);
    if (thread < THREADS) {
        take<OTHER_REGISTERS>();
        Resident weights(shared.steps.room, nullptr, rank, [&](int s, int i) {
            if (s < SLICES_EACH) return part_of(own.weight_hh, me, s, i);
            return part_of(own.weight_ih, me, s - SLICES_EACH, i, INPUT_SLICES, below.values);
        });
        sync_cluster();
        multiply_all(shared, weights, me, steps, tiles);
    } else if (thread < ALL) {
        make_do_with<GATE_REGISTERS>();
        start(shared, arrays, me, tiles, lengths);
        sync_cluster();
        find_all(shared, arrays, me, tiles, status, AmongSums(), [](int) { meet(WRITTEN, GATE_THREADS + 32); });
    } else {
        make_do_with<READER_REGISTERS>();
        sync_cluster();
        if (me.warp < READERS) read_all(shared, below, me, steps, tiles);
        else tell_all(shared, told_by(layer) + rank, me, steps);
    }
    sync_cluster();
}
