// Takes the place of ecornn/ptx/ld_st_128.cuh: what is stored is visible some time later.
#pragma once
#include "machine.hpp"

inline void st_relaxed_b128(uint4* ptr, uint4 value) { store_later(ptr, value); }
inline uint4 ld_relaxed_b128(const uint4* ptr) { return *ptr; }
inline void ld_relaxed_b128_if(uint4& value, const uint4* ptr, bool predicate) {
    if (predicate) value = *ptr;
}
inline void red_add_release(unsigned* counter) {
    wait_for_stores();
    ++*counter;
}
inline unsigned ld_acquire(const unsigned* counter) { return *counter; }
