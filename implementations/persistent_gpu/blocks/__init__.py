"""Small layers of persistent_gpu: each block has all recurrent weights, and sequences of its own."""
