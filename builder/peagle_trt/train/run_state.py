"""What a run leaves on disk: the state it continues from, and a line of metrics for every step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.files import naming_os_errors, replacing

WORK_NAME, STATE_NAME, METRICS_NAME = "work", "state.pt", "metrics.jsonl"


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Replace the state in one piece; a full disk or a kill leaves the earlier one.

    Its tensors are the host's, so that a run may continue on another device.

    Raises:
        MachineError: The disk is full, or the folder cannot be written.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    with replacing(folder / STATE_NAME) as file:
        torch.save(tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), dict(state)), file)


def read_state(folder: Path) -> dict[str, Any]:
    """The state that `write_state` wrote last.

    Raises:
        UsageError: There is none.
        CheckpointError: The file is damaged.
    """
    import torch

    path = folder / STATE_NAME
    if not path.exists():
        raise UsageError(f"there is no state `{path}` to continue from")
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:
        # torch has no error of its own for a damaged file: it raises what its zip reader or unpickler meets.
        raise CheckpointError(f"`{path}` is damaged: {type(error).__name__}", hint="start the training anew") from error
    return state


def check_facts(state: Mapping[str, Any], facts: Mapping[str, object]) -> None:
    """Refuse to continue a run under other settings.

    Args:
        state: Of the earlier run.
        facts: Names and values that decide the result.

    Raises:
        UsageError: One differs, or the state is of a release that did not record them.
    """
    if "facts" not in state:
        raise UsageError(
            "the state is of an earlier release and cannot be continued exactly",
            hint="train into another folder, with the head of the earlier one as --start",
        )
    known = state["facts"]
    for name, value in facts.items():
        if name in known and known[name] != repr(value):
            raise UsageError(
                f"the earlier training had {name} `{known[name]}`, this one has `{value!r}`",
                hint="resume with the same options, or train into another folder",
            )


def write_metrics(folder: Path, line: Mapping[str, Any]) -> None:
    """Add a line to the metrics.

    Raises:
        MachineError: The disk is full, or the folder cannot be written.
    """
    path = folder / METRICS_NAME
    with naming_os_errors(path), path.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All whole lines of the metrics; a kill may have cut the last one short."""
    path = folder / METRICS_NAME
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def rewind_metrics(folder: Path, step: int) -> None:
    """Drop what was recorded after the state at this step: the steps are about to run again."""
    if not (folder / METRICS_NAME).exists():
        return
    kept = [line for line in read_metrics(folder) if _is_before(line, step)]
    with replacing(folder / METRICS_NAME) as file:
        file.write("".join(json.dumps(line) + "\n" for line in kept).encode())


def _is_before(line: Mapping[str, Any], step: int) -> bool:
    # A step's line has the number of steps before it, an evaluation's the number of steps that it judged.
    return bool(line["step"] < step or (line["step"] == step > 0 and "loss" not in line))
