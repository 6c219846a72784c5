"""Contract, reference and kernels of the single-pass parallel-draft plugin."""
