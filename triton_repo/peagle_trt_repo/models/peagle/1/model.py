"""Hosts the engines of a build: requests join and leave between two steps of one decode loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peagle_trt.deploy.hosting import EngineHost, open_engine_host
from peagle_trt_repo.python_backend import InferenceRequest, require_working_numpy


class TritonPythonModel:
    """The decoupled model `peagle`."""

    host: EngineHost

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads the build that lies beside this file."""
        require_working_numpy()
        self.host = open_engine_host(args)

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Hands the requests to the engine thread and returns at once; that thread answers."""
        for request in requests:
            self.host.accept(request)

    def finalize(self) -> None:
        """Stops the engine thread."""
        self.host.close()
