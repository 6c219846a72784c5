"""The releases of TensorRT-LLM the worker was written for, and what of them it relies on."""
