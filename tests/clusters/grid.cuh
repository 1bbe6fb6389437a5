// Takes the place of implementations/_cuda/grid.cuh: what is published is there some time later.
#pragma once
#include "block.cuh"

inline void publish(uint4* place, uint4 value) { publish_later(place, value); }
inline uint4 published(const uint4* place) { return *place; }
inline void read_again(uint4& found, const uint4* place, bool is_wanted) {
    if (is_wanted) found = *place;
}
inline void arrive(unsigned* counter) {
    await_published();
    ++*counter;
}
inline unsigned arrived(const unsigned* counter) { return *counter; }
