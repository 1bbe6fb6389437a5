// Integer division that rounds up, for sizes of tiles.
#pragma once

__device__ constexpr int ceil_div(int size, int part) { return (size + part - 1) / part; }
