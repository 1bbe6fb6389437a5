// What keeps the compiler from finding a value anew, or from keeping what it found.
#pragma once

// The compiler takes x for another value than before.
__device__ inline void again(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ inline void again(long long& x) { asm volatile("" : "+l"(x)); }
