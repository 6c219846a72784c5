"""Text to token ids, for the ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peagle_trt.decode.text import TextTokenizer
from peagle_trt.deploy.hosting import open_tokenizer
from peagle_trt_repo.python_backend import InferenceRequest, require_working_numpy
from peagle_trt_repo.texts import preprocess


class TritonPythonModel:
    """The model `preprocessing`."""

    tokenizer: TextTokenizer

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads the tokenizer that lies beside this file."""
        require_working_numpy()
        self.tokenizer = open_tokenizer(args)

    def execute(self, requests: Sequence[InferenceRequest]) -> list[object]:
        """One response a request, in order."""
        return [preprocess(request, self.tokenizer) for request in requests]
