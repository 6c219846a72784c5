"""P-EAGLE inside TensorRT-LLM's PyTorch backend: a one-engine worker, its drafter, and the folder that serves them."""
