// Takes the place of ecornn/ptx/flags.cuh: a flag is visible at once, as what is written is.
#pragma once
#include "machine.hpp"

inline void st_release(int* flag, int value) { *flag = value; }
inline int ld_acquire(const int* flag) { return *flag; }
inline unsigned atom_add_acq_rel(unsigned* counter, unsigned value) {
    wait_for_stores();
    const unsigned before = *counter;
    *counter += value;
    return before;
}
