"""Follows the tensors of an ensemble from its inputs through its members to its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from peagle_trt.deploy.findings import Finding

_Shape = tuple[int, tuple[int, ...]]


@dataclass(slots=True)
class _Tensors:
    """What is known about the ensemble's tensors so far.

    Attributes:
        shapes: Type and dimensions by tensor.
        writers: Step that writes it; None for an input of the ensemble.
        readers: Tensors that a step reads.
        decoupled: Decoupled members that a tensor descends from; only tensors that a step writes.
    """

    shapes: dict[str, _Shape] = field(default_factory=dict)
    writers: dict[str, int | None] = field(default_factory=dict)
    readers: set[str] = field(default_factory=set)
    decoupled: dict[str, frozenset[str]] = field(default_factory=dict)


def check_ensemble(name: str, configs: Mapping[str, Any]) -> list[Finding]:
    """Everything that keeps an ensemble from loading.

    Args:
        name: The ensemble.
        configs: Configurations of every model of the repository, as protobuf messages.
    """
    return [Finding(model_name=name, message=message) for message in _messages(configs[name], configs)]


def _messages(ensemble: Any, configs: Mapping[str, Any]) -> Iterator[str]:
    steps = list(ensemble.ensemble_scheduling.step)
    if not steps:
        yield "it has no steps"
    missing = sorted({step.model_name for step in steps} - set(configs))
    yield from (f"member `{name}` is not in the repository" for name in missing)
    if missing or not steps:
        return
    tensors = _Tensors()
    for tensor in ensemble.input:
        tensors.shapes[tensor.name], tensors.writers[tensor.name] = _shape(tensor), None
    yield from _check_writers(steps, configs, tensors)
    yield from _check_members(ensemble, steps, configs)
    yield from _check_readers(steps, configs, tensors)
    yield from _check_ends(ensemble, tensors)
    yield from _check_order(steps, configs, tensors)


def _check_members(ensemble: Any, steps: list[Any], configs: Mapping[str, Any]) -> Iterator[str]:
    for step in steps:
        limit = configs[step.model_name].max_batch_size
        if limit < ensemble.max_batch_size:
            yield f"its `max_batch_size` is {ensemble.max_batch_size}, that of member `{step.model_name}` is {limit}"


def _check_writers(steps: list[Any], configs: Mapping[str, Any], tensors: _Tensors) -> Iterator[str]:
    for index, step in enumerate(steps):
        outputs = {output.name: output for output in configs[step.model_name].output}
        for output, tensor in step.output_map.items():
            if output not in outputs:
                yield f"member `{step.model_name}` has no output `{output}`"
            elif tensor in tensors.writers:
                yield f"tensor `{tensor}` is written twice"
            else:
                tensors.shapes[tensor], tensors.writers[tensor] = _shape(outputs[output]), index


def _check_readers(steps: list[Any], configs: Mapping[str, Any], tensors: _Tensors) -> Iterator[str]:
    for step in steps:
        inputs = {entry.name: entry for entry in configs[step.model_name].input}
        for entry, tensor in step.input_map.items():
            tensors.readers.add(tensor)
            if entry not in inputs:
                yield f"member `{step.model_name}` has no input `{entry}`"
            elif tensor not in tensors.shapes:
                yield f"tensor `{tensor}`, read by `{step.model_name}`, is written by nothing"
            elif not _fits(tensors.shapes[tensor], _shape(inputs[entry])):
                yield f"tensor `{tensor}` does not fit input `{entry}` of `{step.model_name}`: type or shape differ"
        for entry, field_ in inputs.items():
            if not field_.optional and entry not in step.input_map:
                yield f"input `{entry}` of `{step.model_name}` is required, but nothing feeds it"


def _check_ends(ensemble: Any, tensors: _Tensors) -> Iterator[str]:
    for tensor in ensemble.input:
        if tensor.name not in tensors.readers:
            yield f"input `{tensor.name}` is not used"
    for tensor in ensemble.output:
        if tensors.writers.get(tensor.name) is None:
            yield f"output `{tensor.name}` is not written"
        elif not _fits(tensors.shapes[tensor.name], _shape(tensor)):
            yield f"output `{tensor.name}` has another type or shape than the member that writes it"


def _check_order(steps: list[Any], configs: Mapping[str, Any], tensors: _Tensors) -> Iterator[str]:
    waiting = list(range(len(steps)))
    while waiting:
        ready = [index for index in waiting if not _waits(steps[index], tensors, waiting)]
        if not ready:
            yield "its steps wait for one another: " + ", ".join(f"`{steps[index].model_name}`" for index in waiting)
            return
        for index in ready:
            yield from _follow_decoupled(steps[index], configs, tensors)
            waiting.remove(index)


def _waits(step: Any, tensors: _Tensors, waiting: list[int]) -> bool:
    return any(tensors.writers.get(tensor) in waiting for tensor in step.input_map.values())


def _follow_decoupled(step: Any, configs: Mapping[str, Any], tensors: _Tensors) -> Iterator[str]:
    origins = {tensors.decoupled[tensor] for tensor in step.input_map.values() if tensor in tensors.decoupled}
    if len(origins) > 1:
        yield f"member `{step.model_name}` joins tensors from before and after a decoupled member"
    origin = frozenset().union(*origins) if origins else frozenset()
    if configs[step.model_name].model_transaction_policy.decoupled:
        origin |= {step.model_name}
    tensors.decoupled |= dict.fromkeys(step.output_map.values(), origin)


def _shape(tensor: Any) -> _Shape:
    return int(tensor.data_type), tuple(tensor.dims)


def _fits(written: _Shape, read: _Shape) -> bool:
    if written[0] != read[0] or len(written[1]) != len(read[1]):
        return False
    return all(-1 in (left, right) or left == right for left, right in zip(written[1], read[1], strict=True))
