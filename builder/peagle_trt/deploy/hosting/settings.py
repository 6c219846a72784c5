"""Settings of a served model: written into its config.pbtxt as strings, read back here with their types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peagle_trt.errors import UsageError

BUILD_FOLDER = "build"
"""Name of the build beside a model.py."""
CPU_PROFILE = "cpu"
"""Name of the second configuration, `configs/cpu.pbtxt`, which a server takes with `--model-config-name=cpu`."""
CPU_BUILD_FOLDER = "build-cpu"
"""Name of the build that the second configuration opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Parameters of the `peagle` model.

    Attributes:
        exclude_input_in_output: What a request gets that does not say: the answer alone, or the prompt before it.
        max_pending_requests: Requests in flight or waiting, beyond which new ones are refused as UNAVAILABLE.
        cancellation_check_period_ms: How often clients that left are looked for.
        num_threads: Threads of the engine; 0 leaves it to the backend.
        reuse_prefixes: Start a prompt from what an earlier request left of it in a slot, as a chat's next turn does.
        default_draft_tokens: K of a request that does not say: "build" for the build's K, "auto" for what is
            fastest at each step.
        default_prompt_lookup: Whether copies from the text may take the place of drafts for a request that does not
            say.
        log_requests: A line in the server's log for every answer.
    """

    exclude_input_in_output: bool = True
    max_pending_requests: int = 256
    cancellation_check_period_ms: int = 50
    num_threads: int = 0
    default_draft_tokens: str = "build"
    default_prompt_lookup: bool = False
    reuse_prefixes: bool = False
    log_requests: bool = False


def write_parameters(settings: HostSettings) -> dict[str, str]:
    """The settings as Triton keeps them."""
    return {
        "exclude_input_in_output": "true" if settings.exclude_input_in_output else "false",
        "max_pending_requests": str(settings.max_pending_requests),
        "cancellation_check_period_ms": str(settings.cancellation_check_period_ms),
        "num_threads": str(settings.num_threads),
        "reuse_prefixes": "true" if settings.reuse_prefixes else "false",
        "default_draft_tokens": settings.default_draft_tokens,
        "default_prompt_lookup": "true" if settings.default_prompt_lookup else "false",
        "log_requests": "true" if settings.log_requests else "false",
    }


def read_settings(args: Mapping[str, str]) -> HostSettings:
    """Settings from what `initialize` is given.

    Raises:
        UsageError: A parameter has no sensible value.
    """
    parameters: dict[str, dict[str, str]] = json.loads(args["model_config"]).get("parameters", {})
    texts = {name: entry["string_value"] for name, entry in parameters.items()}
    defaults = HostSettings()
    return HostSettings(
        exclude_input_in_output=_boolean(texts, "exclude_input_in_output", defaults.exclude_input_in_output),
        max_pending_requests=_integer(texts, "max_pending_requests", defaults.max_pending_requests, 1),
        cancellation_check_period_ms=_integer(
            texts, "cancellation_check_period_ms", defaults.cancellation_check_period_ms, 1
        ),
        num_threads=_integer(texts, "num_threads", defaults.num_threads, 0),
        reuse_prefixes=_boolean(texts, "reuse_prefixes", defaults.reuse_prefixes),
        default_draft_tokens=_word(texts, "default_draft_tokens", defaults.default_draft_tokens, ("build", "auto")),
        default_prompt_lookup=_boolean(texts, "default_prompt_lookup", defaults.default_prompt_lookup),
        log_requests=_boolean(texts, "log_requests", defaults.log_requests),
    )


def engine_build_path(args: Mapping[str, str]) -> Path:
    """The build whose engine the chosen configuration opens.

    Raises:
        UsageError: Parameter `build` names another folder.
    """
    parameters: dict[str, dict[str, str]] = json.loads(args["model_config"]).get("parameters", {})
    texts = {name: entry["string_value"] for name, entry in parameters.items()}
    return version_path(args) / _word(texts, "build", BUILD_FOLDER, (BUILD_FOLDER, CPU_BUILD_FOLDER))


def version_path(args: Mapping[str, str]) -> Path:
    """Folder of the model version that `initialize` is called for."""
    return Path(args["model_repository"]) / args["model_version"]


def _boolean(texts: Mapping[str, str], name: str, default: bool) -> bool:
    text = texts.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise UsageError(f"parameter `{name}` is `{text}`, expected `true` or `false`")
    return text == "true"


def _word(texts: Mapping[str, str], name: str, default: str, words: tuple[str, ...]) -> str:
    text = texts.get(name, default)
    if text not in words:
        raise UsageError(f"parameter `{name}` is `{text}`, expected one of {', '.join(f'`{word}`' for word in words)}")
    return text


def _integer(texts: Mapping[str, str], name: str, default: int, minimum: int) -> int:
    text = texts.get(name, str(default))
    if not text.isdecimal() or int(text) < minimum:
        raise UsageError(f"parameter `{name}` is `{text}`, expected a whole number of at least {minimum}")
    return int(text)
