"""Cheats that others have published, by family: the planted layers that do the same here.

Their sources, and what stays out of reach within one process, stand in docs/how-it-verifies.md.
"""

from __future__ import annotations

FAMILIES = {
    "expected results found": ("expected_found_by_gc", "expected_taken_from_its_cache", "reference_called"),
    "judge's numbers overwritten": ("constants_of_the_judge_changed", "constant_of_the_judge_overwritten"),
    "judge replaced": ("judge_replaced", "code_of_the_judge_replaced", "defaults_of_the_harness_written"),
    "warm-up told apart": ("warm_up_counted", "warm_up_told_by_memory", "warm_up_told_by_poison", "undone_in_the_first_call"),
    "stack walked": ("warm_up_told_by_stack", "one_call_for_many_by_frames", "one_call_for_many_by_traceback"),
    "functions detoured": ("clock_detoured", "kernel_of_torch_overridden"),
    "calls batched and skipped": ("several_calls_at_once", "one_call_for_many_by_storage", "one_call_for_many_by_aliases"),
    "aggregate driven to zero": ("undone_now_and_then", "cost_of_one_step"),
    "results replayed": ("memo_by_contents", "memo_in_files", "memo_of_rows"),
    "cached by address": ("memo_by_address", "memo_by_version"),
    "lazy output": ("deferred_until_read", "deferred_by_a_method_of_the_result"),
    "timer patched": ("clock_slowed", "clock_of_the_harness_slowed", "clock_of_events_slowed_cuda"),
    "statistics patched": ("numpy_replaced", "builtin_replaced"),
    "stream injection": ("side_stream_not_waited_for_cuda", "no_synchronisation_cuda"),
    "thread injection": ("deferred_by_a_queue", "deferred_by_a_timer", "thread_burns_a_core"),
    "no work, or the input back": ("undone_late_in_the_row", "undone_amid_a_block", "undone_while_memory_is_counted"),
    "part of the work": ("one_sequence_left_out", "last_step_left_out", "direction_left_out"),
    "stale or unwritten memory": ("memory_workspace_not_cleared", "memory_element_unwritten", "aliasing_output_of_a_ring"),
    "lower precision": ("coarser_now_and_then", "settings_tf32", "precision_accumulation_16bit"),
}


def families_of(name: str) -> list[str]:
    """Returns the families that a planted layer stands for."""
    return [family for family, names in FAMILIES.items() if name in names]
