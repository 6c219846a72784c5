"""The file of scales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from peagle_trt.errors import CheckpointError, UsageError
from peagle_trt.quant.calibration import Scales, find_calibration, read_scales, write_scales

NAME = "model.layers.0.self_attn.q_proj.input_scale"


def scales() -> Scales:
    found = {NAME: np.array(0.25, np.float32), "a.pre_quant_scale": np.arange(1, 4, dtype=np.float32)}
    return Scales(values=found, recipe="nvfp4", num_texts=3, num_tokens=70, tool="tool 1.0", notes={"more": "x"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_scales(scales(), tmp_path / "scales.safetensors")
    found = read_scales(tmp_path / "scales.safetensors")
    assert (found.recipe, found.num_texts, found.num_tokens, found.tool) == ("nvfp4", 3, 70, "tool 1.0")
    assert found.notes == {"more": "x"}
    assert found.values[NAME] == np.float32(0.25)
    np.testing.assert_array_equal(found.values["a.pre_quant_scale"], [1, 2, 3])


def test_other_software_reads_it(tmp_path: Path) -> None:
    from safetensors import safe_open

    write_scales(scales(), tmp_path / "scales.safetensors")
    with safe_open(tmp_path / "scales.safetensors", "np") as file:
        assert file.metadata()["recipe"] == "nvfp4"
        assert file.get_tensor(NAME).shape == ()


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_scale_that_is_no_positive_number_is_named(value: float, tmp_path: Path) -> None:
    save_file({NAME: np.array(value, np.float32)}, tmp_path / "s")
    with pytest.raises(CheckpointError, match=f"`{NAME}` holds a number that is no positive scale"):
        read_scales(tmp_path / "s")


def test_a_scale_of_another_type_is_named(tmp_path: Path) -> None:
    save_file({NAME: np.array(1, np.float16)}, tmp_path / "s")
    with pytest.raises(CheckpointError, match=f"`{NAME}` is F16"):
        read_scales(tmp_path / "s")


def test_a_scale_of_another_shape_is_named(tmp_path: Path) -> None:
    save_file({NAME: np.ones(2, np.float32)}, tmp_path / "s")
    with pytest.raises(CheckpointError, match="expected F32 of 0 dimension"):
        read_scales(tmp_path / "s")


def test_weights_are_no_scales(tmp_path: Path) -> None:
    save_file({"q_proj.weight": np.ones((2, 2), np.float32)}, tmp_path / "s")
    with pytest.raises(CheckpointError, match=r"`q_proj\.weight`, which is no scale"):
        read_scales(tmp_path / "s")


def test_a_recipe_of_weights_alone_is_not_calibrated() -> None:
    with pytest.raises(UsageError, match="quantizes weights alone"):
        find_calibration("w4a16-nvfp4")


def test_an_unknown_recipe_is_refused_with_those_known() -> None:
    with pytest.raises(UsageError, match="unknown calibration `fp9`") as caught:
        find_calibration("fp9")
    assert "nvfp4-awq" in caught.value.hint
