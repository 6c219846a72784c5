"""Rotary embeddings in both spellings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.json_file import Fields
from peagle_trt.readers.rope import read_rope
from peagle_trt.spec import RopeConfig

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 30.0, "truncate": False}
CASES: dict[str, tuple[dict[str, Any], RopeConfig]] = {
    "nothing": ({}, RopeConfig(theta=10000.0)),
    "older": ({"rope_theta": 5e5, "rope_scaling": None}, RopeConfig(theta=5e5)),
    "newer": ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeConfig(theta=5e5)),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeConfig(scaling="linear", factor=2.0)),
    "llama3_older": (
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        RopeConfig(theta=5e5, scaling="llama3", factor=8.0, original_max_positions=8192),
    ),
    "llama3_newer": (
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
        RopeConfig(theta=5e5, scaling="llama3", factor=8.0, original_max_positions=8192),
    ),
    "yarn": (
        {"rope_scaling": {"rope_type": "yarn", **YARN, "attention_factor": 1.1}},
        RopeConfig(
            scaling="yarn",
            factor=4.0,
            original_max_positions=4096,
            beta_fast=30.0,
            attention_factor=1.1,
            truncates_ramp=False,
        ),
    ),
    "yarn_from_the_context": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 2048},
        RopeConfig(scaling="yarn", factor=4.0, original_max_positions=2048),
    ),
}


@pytest.mark.parametrize(("config", "expected"), CASES.values(), ids=CASES.keys())
def test_both_spellings_are_understood(config: dict[str, Any], expected: RopeConfig) -> None:
    assert read_rope(Fields(source=Path("config.json"), values=config)) == expected


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "linear_zero": ({"type": "linear", "factor": 0}, "`rope_scaling.factor` must be a number above 0"),
    "linear_negative": ({"type": "linear", "factor": -2}, "`rope_scaling.factor` must be a number above 0"),
    "yarn_factor": ({"type": "yarn", **YARN, "factor": 1e308}, "`rope_scaling.factor` must be a number above 0"),
    "yarn_zero": ({"type": "yarn", **YARN, "beta_slow": 0}, "`rope_scaling.beta_slow` must be a number above 0"),
    "yarn_fast": ({"type": "yarn", **YARN, "beta_fast": 0}, "`rope_scaling.beta_fast` must be a number above 0"),
    "yarn_equal": ({"type": "yarn", **YARN, "beta_slow": 30}, "`rope_scaling.beta_fast` must be above `beta_slow`, 30"),
    "yarn_amplitude": (
        {"type": "yarn", **YARN, "attention_factor": 0},
        "`rope_scaling.attention_factor` must be a number above 0",
    ),
    "yarn_length": (
        {"type": "yarn", **YARN, "original_max_position_embeddings": 10**400},
        "`rope_scaling.original_max_position_embeddings` must be a whole number from 1",
    ),
    "llama3_equal": (
        {"type": "llama3", **LLAMA3, "high_freq_factor": 1.0},
        "`rope_scaling.high_freq_factor` must be above `low_freq_factor`, 1.0",
    ),
}


@pytest.mark.parametrize(("scaling", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_rule_that_cannot_be_computed_is_refused(scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_rope(Fields(source=Path("config.json"), values={"rope_scaling": scaling}))
