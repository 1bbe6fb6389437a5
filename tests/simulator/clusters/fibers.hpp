// Announces switches between fibers to AddressSanitizer: which stack is left, and for which. Without it there is nothing to do.
#pragma once
#include <stddef.h>

struct Stack {
    const void* bottom = nullptr;
    size_t bytes = 0;
    void* fake = nullptr;  // AddressSanitizer's own
    Stack() = default;
    Stack(const void* bottom, size_t bytes) : bottom(bottom), bytes(bytes) {}
};

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
inline void leave_for(Stack& own, const Stack& next) { __sanitizer_start_switch_fiber(&own.fake, next.bottom, next.bytes); }
inline void arrive_on(Stack& own) { __sanitizer_finish_switch_fiber(own.fake, nullptr, nullptr); }
// For the first time; `last`: the stack that was left.
inline void arrive_from(Stack& last) { __sanitizer_finish_switch_fiber(nullptr, &last.bottom, &last.bytes); }
#else
inline void leave_for(Stack&, const Stack&) {}
inline void arrive_on(Stack&) {}
inline void arrive_from(Stack&) {}
#endif
