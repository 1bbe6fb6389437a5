// Takes the place of implementations/cuda/wgmma.cuh: a descriptor is read as wgmma reads it, sums are taken column by column,
// and not before they are waited for.
#pragma once

inline void show_to_products() { current->are_shown = true; }
inline void begin_products() { meet(warp_of_current().meeting); }
inline void end_products() {
    for (const auto& product : current->products) product();
    current->products.clear();
    meet(warp_of_current().meeting);
}
inline void later(std::function<void()> product) {
    if (!current->are_shown) cluster->outcome = PRODUCT_TOO_EARLY;
    current->products.push_back(product);
}

struct Described {
    unsigned start, eights, rows;
    explicit Described(unsigned long long bits)
        : start((bits & 0x3fff) * 16), eights((bits >> 16 & 0x3fff) * 16), rows((bits >> 32 & 0x3fff) * 16) {}
    float at(unsigned row, unsigned k) const {
        const unsigned char* place = block_memory() + start + k / 8 * eights + row / 8 * rows + row % 8 * 16 + k % 8 * 2;
        return widen(*(const storage*)place);
    }
};

template <typename Weight> void multiply_by(Weight weight, Sums* sums, unsigned long long states, int adds) {
    const Described of(states);
    const unsigned lane = threadIdx.x % 32;
    for (int tile = 0; tile < TILES; tile++)
        for (int i = 0; i < 4; i++) {
            const unsigned row = lane / 4 + i / 2 * 8, n = tile * 8 + lane % 4 * 2 + i % 2;
            float sum = adds ? sums[tile].at[i] : 0;
            for (unsigned k = 0; k < 16; k++) sum += weight(row, k) * of.at(n, k);
            sums[tile].at[i] = sum;
        }
}

// Of a fragment, lane (g, t) has rows g and g + 8 by turns, of columns 2 t and then 2 t + 8 a pair.
inline void multiply(Sums* sums, const Slice& weights, unsigned long long states, int adds) {
    later([=] {
        Warp& warp = warp_of_current();
        std::memcpy(warp.words[threadIdx.x % 32], weights.at, 16);
        meet(warp.meeting);
        const auto weight = [&](unsigned row, unsigned k) {
            const unsigned* words = warp.words[row % 8 * 4 + k % 8 / 2];
            return widen(((const storage*)&words[row / 8 + k / 8 * 2])[k % 2]);
        };
        multiply_by(weight, sums, states, adds);
        meet(warp.meeting);
    });
}

inline void multiply(Sums* sums, unsigned long long weights, unsigned long long states, int adds) {
    later([=] {
        const Described of(weights);
        const unsigned first = threadIdx.x / 32 % 4 * 16;
        multiply_by([&](unsigned row, unsigned k) { return of.at(first + row, k); }, sums, states, adds);
    });
}
