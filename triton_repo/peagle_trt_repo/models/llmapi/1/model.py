"""Hosts TensorRT-LLM with a P-EAGLE head: text in, text out, under the names of NVIDIA's llmapi model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peagle_trt.trtllm.hosting.llmapi import LlmApiHost
from peagle_trt_repo.python_backend import InferenceRequest


class TritonPythonModel:
    """The decoupled model `tensorrt_llm`."""

    host: LlmApiHost

    def initialize(self, args: Mapping[str, str]) -> None:
        """Starts TensorRT-LLM as `model.yaml` beside this file says."""
        self.host = LlmApiHost(args)

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Hands the requests over and returns at once; threads answer."""
        for request in requests:
            self.host.accept(request)

    def finalize(self) -> None:
        """Stops TensorRT-LLM."""
        self.host.close()
