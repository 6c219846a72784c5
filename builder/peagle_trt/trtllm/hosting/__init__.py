"""TensorRT-LLM inside Triton's python backend: the model that hosts it, and the classic ensemble's door before it."""
