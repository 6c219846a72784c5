"""Builds that leave out what rounding moves too far."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peagle_trt import pipeline
from peagle_trt.cli.main import run
from peagle_trt.decode.session import generate, open_build
from peagle_trt.errors import PlanError, UsageError
from peagle_trt.quant import open_stored
from peagle_trt.quant.unpacking import integer_bits
from peagle_trt.quant.weight_errors import predict_errors
from peagle_trt.readers import read_drafter, read_target
from peagle_trt.spec import BuildSpec
from peagle_trt.verify import verify_build
from tests.support.builds import steps_run


@pytest.fixture
def spec_int8(spec: BuildSpec) -> BuildSpec:
    return replace(spec, precision="int8")


def limit_of(spec: BuildSpec) -> float:
    """A limit that parts the matrices in two."""
    errors = predict_errors("int8", read_target(spec.target_path), read_drafter(spec.drafter_path))
    return float(np.median([each.error for each in errors]))


def test_matrices_above_the_limit_stay_and_are_told(spec_int8: BuildSpec) -> None:
    limit = limit_of(spec_int8)
    lines: list[str] = []
    manifest = pipeline.build(replace(spec_int8, keep_above=limit), report=lines.append)
    stored = {
        model: open_stored(spec_int8.output_path / "engine" / f"{model}.safetensors") for model in ("target", "drafter")
    }
    errors = predict_errors("int8", read_target(spec_int8.target_path), read_drafter(spec_int8.drafter_path))
    for each in errors:
        name = f"{each.model}.{each.name}"
        assert (name in manifest.left_out) == (each.error > limit)
        expected = None if each.error > limit else 8
        if each.name in stored[each.model]:
            assert integer_bits(stored[each.model], each.name) == expected
    assert manifest.keep_above == limit
    assert any(f"{len(manifest.left_out)} of {len(errors)} matrices" in line for line in lines)
    recorded = verify_build(spec_int8.output_path).weights
    assert max(each.error for each in recorded if each.form == "int8") <= limit


def test_the_build_answers_and_drafts_like_its_plain_self(spec_int8: BuildSpec) -> None:
    pipeline.build(replace(spec_int8, keep_above=limit_of(spec_int8)))
    loaded = open_build(spec_int8.output_path, num_threads=1)
    request = loaded.request("One and one", max_tokens=30)
    drafted, plain = (generate(loaded, [replace(request, draft_tokens=count)])[0] for count in (4, 0))
    assert drafted.token_ids == plain.token_ids


def test_a_second_run_takes_the_choice_over_and_another_limit_does_not(spec_int8: BuildSpec) -> None:
    limit = limit_of(spec_int8)
    first = pipeline.build(replace(spec_int8, keep_above=limit))
    assert steps_run(replace(spec_int8, keep_above=limit)) == []
    again = pipeline.build(replace(spec_int8, keep_above=limit, draft_tokens=3))
    assert again.left_out == first.left_out
    assert "quantize" in steps_run(replace(spec_int8, keep_above=limit * 1.01))


def test_a_dry_run_counts_what_stays(spec_int8: BuildSpec) -> None:
    sizes = [
        pipeline.dry_run(replace(spec_int8, keep_above=limit)).step("quantize").size_bytes
        for limit in (None, limit_of(spec_int8))
    ]
    assert sizes[0] is not None and sizes[1] is not None
    assert sizes[0] < sizes[1]
    written = pipeline.build(replace(spec_int8, keep_above=limit_of(spec_int8)))
    held = sum(file.size_bytes for file in written.files if file.path.endswith(".safetensors"))
    assert abs(held - sizes[1]) < 64 * 1024


def test_a_limit_that_leaves_nothing_out_is_told(spec_int8: BuildSpec) -> None:
    lines: list[str] = []
    manifest = pipeline.build(replace(spec_int8, keep_above=0.9), until="quantize", report=lines.append)
    assert manifest.left_out == ()
    assert any("--keep-above 0.9 leaves nothing out: the worst of" in line for line in lines)


def test_a_limit_that_leaves_nothing_quantized_is_refused(spec_int8: BuildSpec) -> None:
    with pytest.raises(UsageError, match=r"--keep-above 1e-09 leaves nothing quantized: precision `int8` moves every"):
        pipeline.build(replace(spec_int8, keep_above=1e-9))
    assert not spec_int8.output_path.exists()


@pytest.mark.parametrize("precision", ["fp32", "native", "bf16"])
def test_a_precision_that_quantizes_nothing_has_nothing_to_leave_out(spec: BuildSpec, precision: str) -> None:
    with pytest.raises(UsageError, match=f"precision `{precision}` quantizes nothing of these"):
        pipeline.build(replace(spec, precision=precision, keep_above=0.1))


@pytest.mark.parametrize("limit", [float("nan"), -0.1, 0.0, float("inf")])
def test_a_limit_that_is_none_is_refused(spec: BuildSpec, limit: float) -> None:
    with pytest.raises(PlanError, match="expected a number above 0"):
        pipeline.build(replace(spec, precision="int8", keep_above=limit))


@pytest.mark.parametrize("limit", ["nan", "-1", "much"])
def test_the_command_refuses_such_a_limit(
    spec: BuildSpec, limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["build", "--target", spec.target_path, "--drafter", spec.drafter_path, "-o", tmp_path / "out"]
    assert run(["-q", "--json", *map(str, words), "--precision", "int8", f"--keep-above={limit}"]) == 2
    assert "--keep-above" in json.loads(capsys.readouterr().out)["error"]["message"]
