"""What a worker computes, in plain torch: nothing here imports TensorRT-LLM, so all of it is tested without it."""
