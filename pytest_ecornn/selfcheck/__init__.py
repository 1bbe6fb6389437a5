"""The harness tries itself: wrong kernels (`mutants/`) and benchmark exploits (`exploits/`) that it must catch."""
