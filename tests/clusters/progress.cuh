// Takes the place of implementations/_cuda/progress.cuh: what is said is heard at once, as what is written is there at once.
#pragma once
#include "block.cuh"

inline void say(int* place, int number) { *place = number; }
inline int heard(const int* place) { return *place; }
