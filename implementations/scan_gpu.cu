// Maths: minGRU and minLSTM after their input product (arXiv 2410.01201, sections 3.1, 3.2, appendix B): h_t = keep h_(t-1) +
//   take g(candidate), keep + take = 1; and its derivative. CELL picks the cell, POSITIVE appendix B's g. A stretch of steps is an
//   affine map of the state, and so is one stretch after another (Blelloch, "Prefix sums and their applications", 1990).
// Layout: steps and sequences lie `*_step` and `*_sequence` elements apart, gates and channels side by side.
//   x [T, B, G*H] storage, read: the product (minGRU: z, candidate; minLSTM: f, i, candidate). d_x likewise, written
//   bias [G*H] storage, read, null without BIASED: added to x. output, d_output [T, B, H] storage: forward written, backward read
//   first, final, d_final, d_first [B, H] storage: the states at both ends; first and d_final null for zeros, d_first for none
//   lengths [B] int64, null for none: a sequence that is over keeps its state, and its output is 0
//   resets [T, B] uint8, null for none: where it is not 0 the step starts from a state of 0
//   ticket [1] int32, maps [tiles + groups, blocks of channels, channels, 2] word, both zero at first, SPLIT only
//   No two may alias. Alignment: of PACK elements; maps of two words.
// Launch: a block has ACROSS * PACK channels of a sequence, a thread PACK of them over STEPS steps, a stretch; the stretches of a
//   block follow each other in time, a tile. Without SPLIT a block runs through all tiles of its channels; with it it takes the
//   earliest tile that nobody has, again and again. Static shared memory only.
// Cost: reads G + writes 1 value an element and step, backward reads G + 2 and writes G; SPLIT two words a channel and tile more.
// Limits: T and G * B * H below 2^30, to any number of elements; offsets are 64-bit. PACK is 2 only in 16 bits.
// Order: a tile's stretches meet in shared memory, two buffers in turn, so one barrier suffices without SPLIT. With it a tile
//   publishes its map, the last of each `group` tiles that of its group, and every tile folds the groups and then the tiles
//   before it, in the order of time: sums are the same in every run. A published word is never 0 and says all by itself, so
//   relaxed loads and stores suffice. Who waits, waits for tiles with smaller tickets, which are running or done.
#include "min_gates.cuh"
#include "tiles.cuh"

// A pre-activation with which a step changes nothing: what is taken of a candidate of 0 is nothing.
__device__ inline wide neutral(int gate) {
    const compute infinity = value_of(INFINITE);
    const compute value = gate == GATES - 1 ? 0 : CELL == MINLSTM && gate == 0 ? infinity : -infinity;
    wide found;
    for (int p = 0; p < PACK; ++p) found.at[p] = value;
    return found;
}

__device__ inline packed load(const storage* from) { return *(const packed*)from; }
__device__ inline void store(storage* to, const wide& values) { *(packed*)to = narrow_all(values); }
// PACK elements of a vector over channels, 0 for none.
__device__ inline wide load_vector(const storage* given, bool is_inside, offset place) {
    wide found;
    for (int p = 0; p < PACK; ++p) found.at[p] = given && is_inside ? widen(given[place + p]) : 0;
    return found;
}

// What one thread reads for a stretch, forward and backward.
struct GatesGiven {
    packed x[STEPS][GATES];
    wide bias[GATES];
    bool is_new[STEPS];

    template <bool IS_FULL>
    __device__ void load_steps(const Place& at, const Rows<const storage>& rows, int hidden) {
        const storage* source = at.at(rows, at.first_step) + at.channel;
        const int count = at.count();
#pragma unroll
        for (int i = 0; i < STEPS; ++i, source += at.stride(rows))
            for (int gate = 0; gate < GATES; ++gate)
                x[i][gate] = IS_FULL || i < count ? load(source + gate * hidden) : narrow_all(neutral(gate));
    }
    __device__ void load_all(
        const Place& at, const Rows<const storage>& rows, const storage* of_bias, const Rows<const unsigned char>& resets,
        int hidden) {
        if (at.count() == STEPS)
            load_steps<true>(at, rows, hidden);
        else
            load_steps<false>(at, rows, hidden);
        for (int gate = 0; gate < GATES; ++gate)
            if (BIASED) bias[gate] = load_vector(of_bias, at.is_inside, gate * hidden + at.channel);
#pragma unroll
        for (int i = 0; i < STEPS; ++i)
            is_new[i] = MASKED && resets.start && i < at.count() && *at.at(resets, at.first_step + i);
    }
    // The pre-activations of a step, by channel.
    __device__ void widened(int i, compute (*found)[GATES]) const {
        for (int gate = 0; gate < GATES; ++gate) {
            const wide all = widen_all(x[i][gate]);
            for (int p = 0; p < PACK; ++p) found[p][gate] = BIASED ? all.at[p] + bias[gate].at[p] : all.at[p];
        }
    }
};

// Values of a thread for its steps and channels, `held` for it in shared memory while it has others.
struct PerStep {
    compute of[STEPS][PACK];
    __device__ void swap(compute (*held)[32 * WARPS]) {
#pragma unroll
        for (int i = 0; i < STEPS * PACK; ++i) {
            compute& mine = of[i / PACK][i % PACK];
            const compute old = held[i][threadIdx.x];
            held[i][threadIdx.x] = mine;
            mine = old;
        }
    }
};

// The steps of one thread's stretch, each an affine map.
struct Stretch {
    static const int HELD = 2 * STEPS * PACK;
    PerStep keep, add;

    __device__ void set(int i, int p, bool is_alive, bool is_new, compute kept, compute added) {
        // Steps beyond the last are neutral by themselves, unless a bias is added to them.
        const bool is_taken = !(MASKED || BIASED) || is_alive;
        keep.of[i][p] = !is_taken ? 1 : MASKED && is_new ? -(compute)0 : kept;
        add.of[i][p] = is_taken ? added : 0;
    }
    __device__ compute after(int i, int p, compute state) const { return apply({keep.of[i][p], add.of[i][p]}, state); }
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
                map.product = -(compute)0;
            } else if (map.product == 0) {  // underflowed, or one was 0
                for (int i = 0; i < STEPS; ++i) is_open &= keep.of[i][p] > 0;
                map.product = is_open ? (compute)SMALLEST : 0;
            }
            all.of[p] = map;
        }
        return all;
    }
    __device__ void swap(compute (*held)[32 * WARPS]) { keep.swap(held), add.swap(held + STEPS * PACK); }
};

#if !BACKWARD
struct Forward {
    typedef GatesGiven Given;
    typedef Stretch Steps;
    const Block& block;
    Rows<const storage> x;
    Rows<storage> output;
    Rows<const unsigned char> resets;
    const storage *bias, *first;
    storage* final;
    const offset* lengths;
    int steps_all, hidden;
    bool is_reverse;

    __device__ Place place(const Job& job) const { return Place(lengths, block, job, steps_all, hidden, is_reverse); }
    __device__ wide start(const Place& at) const { return load_vector(first, at.is_inside, at.in_state(hidden)); }
    __device__ void load(Given& given, const Place& at) const { given.load_all(at, x, bias, resets, hidden); }
    __device__ Steps steps(const Given& given, const Place& at) const {
        Steps found;
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            compute wide_x[PACK][GATES];
            given.widened(i, wide_x);
            for (int p = 0; p < PACK; ++p) {
                const Gates now = gates_of(wide_x[p]);
                const compute taken = now.take * candidate(wide_x[p][GATES - 1]);
                found.set(i, p, at.is_alive(at.first_step + i), given.is_new[i], now.keep, taken);
            }
        }
        return found;
    }
    __device__ void emit(const Steps& steps, const Place& at, wide state) const {
        storage* target = at.at(output, at.first_step) + at.channel;
        const int count = at.count();
#pragma unroll
        for (int i = 0; i < STEPS; ++i, target += at.stride(output)) {
            wide shown;
            for (int p = 0; p < PACK; ++p) {
                state.at[p] = steps.after(i, p, state.at[p]);
                shown.at[p] = !MASKED || at.is_alive(at.first_step + i) ? state.at[p] : 0;
            }
            if (i < count) store(target, shown);
        }
        if (count && steps_all <= at.first_step + STEPS) store(final + at.in_state(hidden), state);
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) scan_forward(
    const storage* x, offset x_step, offset x_sequence, const storage* bias, const storage* first, storage* output,
    offset output_step, offset output_sequence, storage* final, const offset* lengths, const unsigned char* resets,
    offset resets_step, offset resets_sequence, int* ticket, word* maps, int steps, int batch, int hidden, int is_reverse,
    int tiles, int group) {
    const Block block(ticket, maps, batch, hidden, tiles, group);
    run(Forward{block, {x, x_step, x_sequence}, {output, output_step, output_sequence}, {resets, resets_step, resets_sequence},
                bias, first, final, lengths, steps, hidden, (bool)is_reverse}, block);
}

#else
// Scanned is the gradient that reaches the state before a step: keep times that of the state after it.
struct Backward {
    struct Given {
        GatesGiven gates;
        packed before[STEPS], gradient[STEPS];
    };
    struct Steps : Stretch {
        static const int HELD = (3 + GATES) * STEPS * PACK;
        PerStep slopes[GATES], gradient;
        __device__ void swap(compute (*held)[32 * WARPS]) {
            Stretch::swap(held);
            gradient.swap(held + Stretch::HELD);
            for (int gate = 0; gate < GATES; ++gate) slopes[gate].swap(held + (3 + gate) * STEPS * PACK);
        }
    };
    const Block& block;
    Rows<const storage> x, output, d_output;
    Rows<storage> d_x;
    Rows<const unsigned char> resets;
    const storage *bias, *first, *d_final;
    storage* d_first;
    const offset* lengths;
    int steps_all, hidden;
    bool is_reverse;

    __device__ Place place(const Job& job) const { return Place(lengths, block, job, steps_all, hidden, !is_reverse); }
    __device__ wide start(const Place& at) const { return load_vector(d_final, at.is_inside, at.in_state(hidden)); }
    __device__ void load(Given& given, const Place& at) const {
        given.gates.load_all(at, x, bias, resets, hidden);
        if (!MASKED && at.count() == STEPS && at.first_step + STEPS < steps_all)
            load_steps<true>(given, at);
        else
            load_steps<false>(given, at);
    }
    template <bool IS_FULL>
    __device__ void load_steps(Given& given, const Place& at) const {
        const packed initial = narrow_all(load_vector(IS_FULL ? 0 : first, at.is_inside, at.in_state(hidden)));
        const storage* source = at.at(output, at.first_step + 1) + at.channel;
        const storage* of_gradient = at.at(d_output, at.first_step) + at.channel;
        const int count = at.count();
#pragma unroll
        for (int i = 0; i < STEPS; ++i, source += at.stride(output), of_gradient += at.stride(d_output)) {
            const bool has_before = IS_FULL || (i < count && at.is_alive(at.first_step + i + 1));
            given.before[i] = has_before ? ::load(source) : initial;
            given.gradient[i] = IS_FULL || i < count ? ::load(of_gradient) : narrow_all(wide());
        }
    }
    __device__ Steps steps(const Given& given, const Place& at) const {
        Steps found;
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            compute wide_x[PACK][GATES], slopes[GATES];
            given.gates.widened(i, wide_x);
            const wide before = widen_all(given.before[i]), reaching = widen_all(given.gradient[i]);
            const bool is_alive = at.is_alive(at.first_step + i), is_new = given.gates.is_new[i];
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
        storage* target = at.at(d_x, at.first_step) + at.channel;
        const int count = at.count();
#pragma unroll
        for (int i = 0; i < STEPS; ++i, target += at.stride(d_x)) {
            wide found[GATES];
            for (int p = 0; p < PACK; ++p) {
                const compute total = steps.gradient.of[i][p] + passed.at[p];
                passed.at[p] = steps.after(i, p, passed.at[p]);
                for (int gate = 0; gate < GATES; ++gate)
                    found[gate].at[p] = !MASKED || at.is_alive(at.first_step + i) ? total * steps.slopes[gate].of[i][p] : 0;
            }
            if (i < count)
                for (int gate = 0; gate < GATES; ++gate) store(target + gate * hidden, found[gate]);
        }
        if (d_first && count && steps_all <= at.first_step + STEPS) store(d_first + at.in_state(hidden), passed);
    }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS, RESIDENT) scan_backward(
    const storage* x, offset x_step, offset x_sequence, const storage* bias, const storage* first, const storage* output,
    offset output_step, offset output_sequence, const storage* d_output, offset d_output_step, offset d_output_sequence,
    const storage* d_final, storage* d_x, offset d_x_step, offset d_x_sequence, storage* d_first, const offset* lengths,
    const unsigned char* resets, offset resets_step, offset resets_sequence, int* ticket, word* maps, int steps, int batch,
    int hidden, int is_reverse, int tiles, int group) {
    const Block block(ticket, maps, batch, hidden, tiles, group);
    run(Backward{block, {x, x_step, x_sequence}, {output, output_step, output_sequence},
                 {d_output, d_output_step, d_output_sequence}, {d_x, d_x_step, d_x_sequence},
                 {resets, resets_step, resets_sequence}, bias, first, d_final, d_first, lengths, steps, hidden,
                 (bool)is_reverse}, block);
}
#endif
