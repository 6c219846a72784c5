"""The TensorRT backends: one implementation over `tensorrt_rtx` and `tensorrt`, whose calls are the same."""
