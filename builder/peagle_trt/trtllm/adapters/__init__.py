"""The classes that TensorRT-LLM sees; importing this room imports TensorRT-LLM, so `trtllm.plugin` alone does it."""
