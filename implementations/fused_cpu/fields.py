"""The integers that a launch of fused_cpu's kernels is told, by their place. Addresses are 0 for what is not there."""

# What ends in _T and _B: from a row to the next in time and among sequences, in elements.
(NEXT, TASKS, ROWS, STEPS, BATCH, HIDDEN, INPUT, GATES, SAVED_BLOCKS, REVERSE, WORK, W_HH, W_IH, B_HH, B_IH,
 ROW_T, ROW_B, X, X_T, X_B, OUT, OUT_T, OUT_B, H0, C0, HN, CN, SAVED, OLD, DX, DSUMS,
 LENGTHS, RESETS, RESETS_T, RESETS_B, PACKED, W_HH_SCALES, W_IH_SCALES) = range(38)  # fmt: skip
