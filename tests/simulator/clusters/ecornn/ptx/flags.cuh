// Takes the place of ecornn/ptx/flags.cuh: a flag is visible at once, as what is written is.
#pragma once
#include "machine.hpp"

inline void st_release(int* flag, int value) { *flag = value; }
inline int ld_acquire(const int* flag) { return *flag; }
