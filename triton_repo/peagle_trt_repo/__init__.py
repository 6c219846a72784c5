"""Templates of the Triton model repository that `peagle-trt repo` assembles."""
