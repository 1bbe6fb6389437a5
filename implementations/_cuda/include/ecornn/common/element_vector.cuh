// Elements that are read or written at once.
#pragma once
#include "ecornn/common/dtypes.cuh"

template <int COUNT> struct alignas(COUNT * sizeof(scalar_t)) ElementVector {
    scalar_t values[COUNT];
};
