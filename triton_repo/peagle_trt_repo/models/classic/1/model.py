"""The classic ensemble's door: reads what its clients send, and asks the model `tensorrt_llm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peagle_trt.trtllm.hosting.classic import ClassicDoor
from peagle_trt_repo.python_backend import InferenceRequest, require_working_numpy


class TritonPythonModel:
    """The decoupled model `ensemble`."""

    door: ClassicDoor

    def initialize(self, args: Mapping[str, str]) -> None:
        """Opens the door."""
        require_working_numpy()
        self.door = ClassicDoor()

    def execute(self, requests: Sequence[InferenceRequest]) -> None:
        """Hands the requests over and returns at once; threads answer."""
        for request in requests:
            self.door.accept(request)

    def finalize(self) -> None:
        """Lets answers that are on their way come to an end."""
        self.door.close()
