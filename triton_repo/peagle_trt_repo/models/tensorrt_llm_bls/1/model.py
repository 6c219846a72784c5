"""The classic name for text in, text out by business logic: the ensemble's members, with a way to stop the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from peagle_trt_repo.bls import BlsHost, read_accumulates
from peagle_trt_repo.python_backend import InferenceRequest, require_working_numpy


class TritonPythonModel:
    """The decoupled model `tensorrt_llm_bls`."""

    host: BlsHost

    def initialize(self, args: Mapping[str, str]) -> None:
        """Reads the parameters."""
        require_working_numpy()
        self.host = BlsHost(accumulates=read_accumulates(json.loads(args["model_config"])))

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Hands each request to a thread and returns at once."""
        for request in requests:
            self.host.accept(request)

    def finalize(self) -> None:
        """Waits for the threads."""
        self.host.close()
