"""The LLM API of the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar


class FakeLLM:
    """`tensorrt_llm.LLM`: answers with the words of the prompt, one at a time."""

    started: ClassVar[list[FakeLLM]] = []

    def __init__(self, model: str, **arguments: Any) -> None:
        self.arguments, self.is_down = {"model": model, **arguments}, False
        FakeLLM.started.append(self)

    def generate_async(self, inputs: str, sampling_params: Any = None, *, streaming: bool = False) -> FakeResult:
        if inputs == "fail":
            raise RuntimeError("the engine broke")
        return FakeResult(inputs, sampling_params)

    def shutdown(self) -> None:
        self.is_down = True


class FakeSamplingParams:
    """`tensorrt_llm.SamplingParams`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


class FakeResult:
    """`GenerationResult`; the text of an output is all of it so far."""

    def __init__(self, prompt: str, sampling: FakeSamplingParams) -> None:
        words = prompt.split(" ")[: sampling.settings.get("max_tokens", 100)]
        self.texts = [" ".join(words[: count + 1]) for count in range(len(words))]
        self.is_aborted = False

    def __iter__(self) -> Iterator[Any]:
        for count, text in enumerate(self.texts):
            yield self._output(text, count + 1)

    def result(self) -> Any:
        return self._output(self.texts[-1], len(self.texts))

    def abort(self) -> None:
        self.is_aborted = True

    def _output(self, text: str, count: int) -> Any:
        reason = "length" if count == len(self.texts) else None
        output = SimpleNamespace(text=text, token_ids=list(range(count)), finish_reason=reason, stop_reason=None)
        return SimpleNamespace(outputs=[output], prompt_token_ids=[1, 2, 3])
