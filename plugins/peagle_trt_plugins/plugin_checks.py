"""Reads a node as TensorRT describes it into a `PluginCall`, and refuses what the contract does not allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from peagle_trt_plugins.contract_select_draft import MAX_CANDIDATES
from peagle_trt_plugins.kernel_launches import Dimension
from peagle_trt_plugins.plugin_forms import PluginCall, PluginForm
from peagle_trt_plugins.ports import DOMAIN, MAX_DRAFT_TOKENS, MAX_HIDDEN_SIZE, VERSION, Port

_FLOATS = ("fp32", "fp16", "bf16")
# Ports of the vocabulary, which may be of a floating type of their own; see ports.py.
_TABLES = ("embedding", "lm_head")
_EXACT = {"float32": "fp32", "int32": "i32", "int64": "i64"}
_LIMITS = {"H": MAX_HIDDEN_SIZE, "K": MAX_DRAFT_TOKENS}


class PluginError(Exception):
    """A plugin cannot serve a node, or cannot be registered; the message says why and `hint` the remedy."""

    def __init__(self, message: str, *, hint: str) -> None:
        self.hint = hint
        # TensorRT logs the message of what a callback raises, and nothing else of it.
        super().__init__(f"{message} ({hint})")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenInput:
    """An input as TensorRT describes it.

    Attributes:
        element: As Triton names it, or TensorRT's own name for a type that no kernel takes.
        shape: Sizes.
    """

    element: str
    shape: tuple[Dimension, ...]


def read_call(
    form: PluginForm,
    inputs: tuple[GivenInput, ...],
    attributes: Mapping[str, float],
    known_size: Callable[[Dimension], int | None],
) -> PluginCall:
    """Bind the contract's letters and check. Sizes are not added up here: TensorRT cannot whenever it describes a node.

    Args:
        form: Of the plugin.
        inputs: In the contract's order.
        attributes: Those of the contract and `contract_version`.
        known_size: The number that a size is, or None while it is open.

    Raises:
        PluginError: The node does not keep the contract.
    """
    _check_attributes(form, attributes)
    sizes, known = _bind(form, inputs, known_size)
    elements = _read_elements(form, inputs)
    call = PluginCall(sizes=sizes, known=known, elements=elements, attributes=attributes)
    problem = next(_wrong_values(call), None)
    if problem:
        raise PluginError(f"{DOMAIN}::{form.name}: {problem}", hint=_REBUILD)
    return call


def require_known(form: PluginForm, call: PluginCall) -> None:
    """Refuse a node whose kernel cannot be compiled.

    Raises:
        PluginError: A size that is a constant of the kernel is open.
    """
    missing = [letter for letter in form.needs if letter not in call.known]
    if missing:
        ports = [f"`{port.name}` {list(port.dims)}" for port in form.inputs if set(missing) & set(port.dims)]
        raise PluginError(
            f"{DOMAIN}::{form.name}: {missing} not known when the engine is built; found open in {', '.join(ports)}",
            hint="export the graph with these dimensions fixed",
        )


_REBUILD = "build the graph again with this release"


def _check_attributes(form: PluginForm, attributes: Mapping[str, float]) -> None:
    found = attributes.get("contract_version")
    if found != VERSION:
        raise PluginError(
            f"{DOMAIN}::{form.name}: the graph keeps version {found} of the contract; the plugins keep {VERSION}",
            hint=f"{_REBUILD}, or use the release that made it",
        )
    missing = [attribute.name for attribute in form.attributes if attribute.name not in attributes]
    if missing:
        raise _refusal(form, "attributes", f"{[attribute.name for attribute in form.attributes]}", f"without {missing}")


def _bind(
    form: PluginForm, inputs: tuple[GivenInput, ...], known_size: Callable[[Dimension], int | None]
) -> tuple[dict[str, Dimension], dict[str, int]]:
    """Size of every letter of the inputs, and those that are numbers."""
    sizes: dict[str, Dimension] = {}
    known: dict[str, int] = {}
    if len(inputs) != len(form.inputs):
        raise _refusal(form, "inputs", f"{len(form.inputs)}", f"{len(inputs)}")
    for port, given in zip(form.inputs, inputs, strict=True):
        if len(given.shape) != len(port.dims):
            raise _refusal(form, f"rank of `{port.name}`", f"{len(port.dims)}", f"{len(given.shape)}")
        for letter, size in zip(port.dims, given.shape, strict=True):
            number = known_size(size)
            if number is not None and known.setdefault(letter, number) != number:
                raise _refusal(form, f"{letter} of `{port.name}`", f"{known[letter]}", f"{number}")
            if number is not None or letter not in sizes:
                sizes[letter] = size
    return sizes, known


def _read_elements(form: PluginForm, inputs: tuple[GivenInput, ...]) -> dict[str, str]:
    elements = {port.name: given.element for port, given in zip(form.inputs, inputs, strict=True)}
    shared = [port.name for port in form.inputs if port.element == "float" and port.name not in _TABLES]
    for port in form.inputs:
        allowed = _allowed(port, elements[shared[0]] if shared else "")
        if elements[port.name] not in allowed:
            raise _refusal(form, f"type of `{port.name}`", " or ".join(allowed), elements[port.name])
    for port in form.outputs:
        elements[port.name] = _EXACT.get(port.element) or elements[shared[0]]
    return elements


def _allowed(port: Port, shared: str) -> tuple[str, ...]:
    if port.element in _EXACT:
        return (_EXACT[port.element],)
    return _FLOATS if port.name in _TABLES or shared not in _FLOATS else (shared,)


def _wrong_values(call: PluginCall) -> Iterator[str]:
    for letter, limit in _LIMITS.items():
        if call.known.get(letter, 1) > limit:
            yield f"{letter} is {call.known[letter]}; expected at most {limit}"
    if "epsilon" in call.attributes and not call.attributes["epsilon"] > 0:
        yield f"`epsilon` is {call.attributes['epsilon']}; expected a number above 0"
    if call.attributes.get("norm_before_residual", 0) not in (0, 1):
        yield f"`norm_before_residual` is {call.attributes['norm_before_residual']}; expected 0 or 1"
    most = min(MAX_CANDIDATES, call.known.get("D", MAX_CANDIDATES))
    if not 1 <= call.attributes.get("candidates", 1) <= most:
        yield f"`candidates` is {call.attributes['candidates']}; expected 1..{most}"


def _refusal(form: PluginForm, what: str, expected: str, found: str) -> PluginError:
    return PluginError(f"{DOMAIN}::{form.name}: {what} is {found}; expected {expected}", hint=_REBUILD)
