// Maths: minGRU and minLSTM after their input product (arXiv 2410.01201, sections 3.1, 3.2, appendix B): h_t = keep h_(t-1) +
//   take g(candidate), keep + take = 1; and its derivative. CELL picks the cell, POSITIVE appendix B's g. A stretch of steps is an
//   affine map of the state, and so is one stretch after another (Blelloch, "Prefix sums and their applications", 1990).
// Layout: steps and sequences lie `*_step` and `*_sequence` elements apart, gates and channels side by side.
//   x [T, B, G*H] scalar_t, read: the product (minGRU: z, candidate; minLSTM: f, i, candidate). d_x likewise, written
//   bias [G*H] scalar_t, read, null without BIASED: added to x. output, d_output [T, B, H] scalar_t: forward written, backward read
//   first, final, d_final, d_first [B, H] scalar_t: the states at both ends; first and d_final null for zeros, d_first for none
//   lengths [B] int64, null for none: a sequence that is over keeps its state, and its output is 0
//   resets [T, B] uint8, null for none: where it is not 0 the step starts from a state of 0
//   maps [tiles + groups, blocks of channels, channels, 2] word, zero at first, SPLIT only
//   No two may alias, but d_x may be x, as a warp alone reads its part of a tile, once, and then writes it. Alignment: of PACK
//   elements, with ALIGNED of 16 bytes in every row; maps of two words.
// Launch: a block has ACROSS * PACK channels of a sequence, a thread PACK of them over STEPS steps, a stretch; the stretches of a
//   block follow each other in time, a tile. Without SPLIT a block runs through all tiles of its channels; with it blocks take
//   turns, and the launch is cooperative. Dynamic shared memory: STAGES * arrays * STEPS * PACK elements a thread, where arrays
//   are G forward and G + 2 backward.
// Cost: reads G + writes 1 value an element and step, backward reads G + 2 and writes G; SPLIT two words a channel and tile more.
// Limits: T and G * B * H below 2^30, to any number of elements; offsets are 64-bit. PACK is 2 only in 16 bits.
// Order: a tile's stretches meet in shared memory, two buffers in turn, so one barrier suffices without SPLIT. With it a tile
//   publishes its map, the last of each group of tiles that of its group, and every tile folds the groups and then the tiles
//   before it, in the order of time: sums are the same in every run. A published word is never 0 and says all by itself, so
//   relaxed loads and stores suffice. Who waits, waits for tiles of an earlier turn or of another block in this one, which have
//   been published before anybody waits for anything that comes after them.
#include "min_gates.cuh"
#include "tiles.cuh"

// A pre-activation with which a step changes nothing: what is taken of a candidate of 0 is nothing.
__device__ inline wide neutral(int gate) {
    const acc_t infinity = value_of(INFINITE);
    const acc_t value = gate == GATES - 1 ? 0 : CELL == MINLSTM && gate == 0 ? infinity : -infinity;
    wide found;
    for (int p = 0; p < PACK; ++p) found.at[p] = value;
    return found;
}

__device__ inline void store(scalar_t* to, const wide& values) { *(packed*)to = narrow_all(values); }
// PACK elements of a vector over channels, 0 for none.
__device__ inline wide load_vector(const scalar_t* given, bool is_inside, offset place) {
    wide found;
    for (int p = 0; p < PACK; ++p) found.at[p] = given && is_inside ? widen(given[place + p]) : 0;
    return found;
}

// What a thread has read ahead for a stretch, by array and step: the gates and, backward, what follows.
template <int ARRAYS>
struct Given {
    packed (*values)[THREADS];
    __device__ Given(int stage) : values((packed(*)[THREADS])dynamic_shared + stage * ARRAYS * STEPS) {}
    __device__ packed& at(int array, int step) const { return values[array * STEPS + step][threadIdx.x]; }
    __device__ void copy(int array, const Place& place, const Rows<const scalar_t>& rows, offset column, int later) const {
        place.copy(values + array * STEPS, rows, column, later);
    }
};

// The pre-activations of a stretch, and which steps start anew.
struct GatesGiven {
    wide bias[GATES];
    bool is_new[STEPS];

    template <int ARRAYS>
    __device__ static void copy(const Given<ARRAYS>& given, const Place& at, const Rows<const scalar_t>& rows) {
        for (int gate = 0; gate < GATES; ++gate) given.copy(gate, at, rows, gate * at.hidden, 0);
    }
    __device__ GatesGiven(const Place& at, const scalar_t* of_bias, const Rows<const unsigned char>& resets) {
        for (int gate = 0; gate < GATES; ++gate)
            if (BIASED) bias[gate] = load_vector(of_bias, at.is_inside, gate * at.hidden + at.channel);
#pragma unroll
        for (int i = 0; i < STEPS; ++i)
            is_new[i] = MASKED && resets.start && i < at.count() && *at.at(resets, at.first_step + i);
    }
    // Makes steps neutral that there are not.
    template <int ARRAYS>
    __device__ static void fill(const Given<ARRAYS>& given, const Place& at) {
        for (int i = at.count(); i < STEPS; ++i)
            for (int gate = 0; gate < GATES; ++gate) given.at(gate, i) = narrow_all(neutral(gate));
    }
    // The pre-activations of a step, by channel.
    template <int ARRAYS>
    __device__ void widened(const Given<ARRAYS>& given, int i, acc_t (*found)[GATES]) const {
        for (int gate = 0; gate < GATES; ++gate) {
            const wide all = widen_all(given.at(gate, i));
            for (int p = 0; p < PACK; ++p) found[p][gate] = BIASED ? all.at[p] + bias[gate].at[p] : all.at[p];
        }
    }
};

// Values of a thread for its steps and channels.
struct PerStep {
    acc_t of[STEPS][PACK];
};

// The steps of one thread's stretch, each an affine map.
struct Stretch {
    PerStep keep, add;

    __device__ void set(int i, int p, bool is_alive, bool is_new, acc_t kept, acc_t added) {
        // Steps beyond the last are neutral by themselves, unless a bias is added to them.
        const bool is_taken = !(MASKED || BIASED) || is_alive;
        keep.of[i][p] = !is_taken ? 1 : MASKED && is_new ? -(acc_t)0 : kept;
        add.of[i][p] = is_taken ? added : 0;
    }
    __device__ acc_t after(int i, int p, acc_t state) const { return apply({keep.of[i][p], add.of[i][p]}, state); }
    __device__ Maps summary() const {
        Maps all;
        for (int p = 0; p < PACK; ++p) {
            Affine map = {1, 0};
            bool is_new = false, is_open = true;
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                is_new |= forgets(keep.of[i][p]);
                map = {map.product * keep.of[i][p], after(i, p, map.sum)};
            }
            if (is_new) {
                map.product = -(acc_t)0;
            } else if (map.product == 0) {  // underflowed, or one was 0
                for (int i = 0; i < STEPS; ++i) is_open &= keep.of[i][p] > 0;
                map.product = is_open ? (acc_t)SMALLEST : 0;
            }
            all.of[p] = map;
        }
        return all;
    }
};

#if !BACKWARD
struct Forward {
    typedef Given<GATES> Ahead;
    typedef Stretch Steps;
    const Block& block;
    Rows<const scalar_t> x;
    Rows<scalar_t> output;
    Rows<const unsigned char> resets;
    const scalar_t *bias, *first;
    scalar_t* final;
    const offset* lengths;
    int steps_all, hidden;
    bool is_reverse;

    __device__ Place place(const Job& job) const { return Place(lengths, block, job, steps_all, hidden, is_reverse); }
    __device__ wide start(const Place& at) const { return load_vector(first, at.is_inside, at.in_state()); }
    __device__ static Ahead ahead(int stage) { return Ahead(stage); }
    __device__ void load(const Ahead& given, const Place& at) const { GatesGiven::copy(given, at, x); }
    __device__ Steps steps(const Ahead& given, const Place& at) const {
        Steps found;
        const GatesGiven gates(at, bias, resets);
        if (!at.is_whole(0)) GatesGiven::fill(given, at);
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            acc_t wide_x[PACK][GATES];
            gates.widened(given, i, wide_x);
            for (int p = 0; p < PACK; ++p) {
                const Gates now = gates_of(wide_x[p]);
                const acc_t taken = now.take * candidate(wide_x[p][GATES - 1]);
                found.set(i, p, at.is_alive(at.first_step + i), gates.is_new[i], now.keep, taken);
            }
        }
        return found;
    }
    __device__ void emit(const Steps& steps, const Place& at, wide state) const {
        if (at.is_whole(0))
            emit_steps<true>(steps, at, state);
        else
            emit_steps<false>(steps, at, state);
        if (at.is_inside && at.first_step < steps_all && steps_all <= at.first_step + STEPS) store(final + at.in_state(), state);
    }
    template <bool IS_WHOLE>
    __device__ void emit_steps(const Steps& steps, const Place& at, wide& state) const {
        scalar_t* target = at.at(output, at.first_step) + at.channel;
        const int count = at.count();
#pragma unroll
        for (int i = 0; i < STEPS; ++i, target += at.stride(output)) {
            wide shown;
            for (int p = 0; p < PACK; ++p) {
                state.at[p] = steps.after(i, p, state.at[p]);
                shown.at[p] = !MASKED || at.is_alive(at.first_step + i) ? state.at[p] : 0;
            }
            if (IS_WHOLE || i < count) store(target, shown);
        }
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) scan_forward(
    const scalar_t* x, offset x_step, offset x_sequence, const scalar_t* bias, const scalar_t* first, scalar_t* output,
    offset output_step, offset output_sequence, scalar_t* final, const offset* lengths, const unsigned char* resets,
    offset resets_step, offset resets_sequence, word* maps, int steps, int batch, int hidden, int is_reverse,
    int tiles, int group_bits) {
    const Block block(maps, batch, hidden, tiles, group_bits);
    run(Forward{block, {x, x_step, x_sequence}, {output, output_step, output_sequence}, {resets, resets_step, resets_sequence},
                bias, first, final, lengths, steps, hidden, (bool)is_reverse}, block);
}

#else
// Scanned is the gradient that reaches the state before a step: keep times that of the state after it.
struct Backward {
    enum { BEFORE = GATES, GRADIENT };
    typedef Given<GATES + 2> Ahead;
    struct Steps : Stretch {
        PerStep slopes[GATES], gradient;
    };
    const Block& block;
    Rows<const scalar_t> x, output, d_output;
    Rows<scalar_t> d_x;
    Rows<const unsigned char> resets;
    const scalar_t *bias, *first, *d_final;
    scalar_t* d_first;
    const offset* lengths;
    int steps_all, hidden;
    bool is_reverse;

    __device__ Place place(const Job& job) const { return Place(lengths, block, job, steps_all, hidden, !is_reverse); }
    __device__ wide start(const Place& at) const { return load_vector(d_final, at.is_inside, at.in_state()); }
    __device__ static Ahead ahead(int stage) { return Ahead(stage); }
    __device__ void load(const Ahead& given, const Place& at) const {
        GatesGiven::copy(given, at, x);
        given.copy(BEFORE, at, output, 0, 1);
        given.copy(GRADIENT, at, d_output, 0, 0);
    }
    // The state before a sequence's first step is the initial one; a step that there is not has a gradient of 0.
    __device__ void fill(const Ahead& given, const Place& at) const {
        GatesGiven::fill(given, at);
        const packed initial = narrow_all(load_vector(first, at.is_inside, at.in_state()));
        for (int i = 0; i < STEPS; ++i) {
            if (i >= at.count()) given.at(GRADIENT, i) = narrow_all(wide());
            if (i >= at.count() || !at.is_alive(at.first_step + i + 1)) given.at(BEFORE, i) = initial;
        }
    }
    __device__ Steps steps(const Ahead& given, const Place& at) const {
        Steps found;
        const GatesGiven gates(at, bias, resets);
        if (MASKED || !at.is_whole(1)) fill(given, at);
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            acc_t wide_x[PACK][GATES], slopes[GATES];
            gates.widened(given, i, wide_x);
            const wide before = widen_all(given.at(BEFORE, i)), reaching = widen_all(given.at(GRADIENT, i));
            const bool is_alive = at.is_alive(at.first_step + i), is_new = gates.is_new[i];
            for (int p = 0; p < PACK; ++p) {
                const Gates now = gates_of(wide_x[p]);
                slopes_of(wide_x[p], now, is_new ? 0 : before.at[p], slopes);
                for (int gate = 0; gate < GATES; ++gate) found.slopes[gate].of[i][p] = slopes[gate];
                found.gradient.of[i][p] = !MASKED || is_alive ? reaching.at[p] : 0;
                found.set(i, p, is_alive, is_new, now.keep, is_new ? 0 : now.keep * found.gradient.of[i][p]);
            }
        }
        return found;
    }
    __device__ void emit(const Steps& steps, const Place& at, wide passed) const {
        scalar_t* target = at.at(d_x, at.first_step) + at.channel;
        const int count = at.count();
#pragma unroll
        for (int i = 0; i < STEPS; ++i, target += at.stride(d_x)) {
            wide found[GATES];
            for (int p = 0; p < PACK; ++p) {
                const acc_t total = steps.gradient.of[i][p] + passed.at[p];
                passed.at[p] = steps.after(i, p, passed.at[p]);
                for (int gate = 0; gate < GATES; ++gate)
                    found[gate].at[p] = !MASKED || at.is_alive(at.first_step + i) ? total * steps.slopes[gate].of[i][p] : 0;
            }
            if (i < count)
                for (int gate = 0; gate < GATES; ++gate) store(target + gate * hidden, found[gate]);
        }
        if (d_first && count && steps_all <= at.first_step + STEPS) store(d_first + at.in_state(), passed);
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) scan_backward(
    const scalar_t* x, offset x_step, offset x_sequence, const scalar_t* bias, const scalar_t* first, const scalar_t* output,
    offset output_step, offset output_sequence, const scalar_t* d_output, offset d_output_step, offset d_output_sequence,
    const scalar_t* d_final, scalar_t* d_x, offset d_x_step, offset d_x_sequence, scalar_t* d_first, const offset* lengths,
    const unsigned char* resets, offset resets_step, offset resets_sequence, word* maps, int steps, int batch,
    int hidden, int is_reverse, int tiles, int group_bits) {
    const Block block(maps, batch, hidden, tiles, group_bits);
    run(Backward{block, {x, x_step, x_sequence}, {output, output_step, output_sequence},
                 {d_output, d_output_step, d_output_sequence}, {d_x, d_x_step, d_x_sequence},
                 {resets, resets_step, resets_sequence}, bias, first, d_final, d_first, lengths, steps, hidden,
                 (bool)is_reverse}, block);
}
#endif
