// Takes the place of implementations/cuda/later.cuh: what is copied comes when it is waited for.
#pragma once
#include "block.cuh"

inline void copy_later(void* shared, const void* from) {
    current->copies.back().push_back([=] { std::memcpy(shared, from, 16); });
}
inline void end_group() { current->copies.emplace_back(); }
template <int LEFT> void await_groups() {
    auto& groups = current->copies;
    while (groups.size() > LEFT + 1) {
        for (const auto& copy : groups.front()) copy();
        groups.erase(groups.begin());
    }
}
inline void show_memory() {}
inline void fetch(const void*) {}
