"""Recipes of quantized checkpoints: what is shipped, and what a file of one's own may not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_trt.errors import UsageError
from peagle_trt.quant.layer_recipes import (
    BUILD_RECIPES,
    CALIBRATIONS,
    LAYER_RECIPES,
    algorithm_of,
    load_layer_recipe,
    load_shipped,
)

SHIPPED = Path(__file__).parents[3] / "builder" / "peagle_trt" / "quant" / "recipes"


def test_every_shipped_file_is_known_by_name() -> None:
    known = {*LAYER_RECIPES, *BUILD_RECIPES, *CALIBRATIONS}
    assert {path.stem for path in SHIPPED.glob("*.toml")} == known


def test_a_recipe_serves_what_it_has_a_section_for() -> None:
    names = tuple(path.stem for path in SHIPPED.glob("*.toml"))
    recipes = [load_shipped(name, names) for name in names]
    assert {recipe.name for recipe in recipes if recipe.build is not None} == set(BUILD_RECIPES)
    assert {recipe.name for recipe in recipes if recipe.calibration is not None} == set(CALIBRATIONS)


@pytest.mark.parametrize("name", LAYER_RECIPES)
def test_a_shipped_recipe_says_what_it_does(name: str) -> None:
    recipe = load_layer_recipe(name)
    assert recipe.name == name
    assert recipe.summary


def test_recipes_name_their_algorithm_as_modelopt_does() -> None:
    named = {name: algorithm_of(load_layer_recipe(name).target) for name in LAYER_RECIPES}
    assert named == {
        "fp8": "FP8",
        "fp8-kv": "FP8",
        "nvfp4": "NVFP4",
        "nvfp4-kv": "NVFP4",
        "nvfp4-experts": "NVFP4",
        "nvfp4-mlp": "NVFP4",
        "w4a16-nvfp4": "W4A16_NVFP4",
        "mxfp4": None,
        "bf16": None,
    }


def test_a_file_of_ones_own_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('summary = "mine"\n[target]\no = { weights = "nvfp4" }\nkeep = ["model.layers.0.*"]\n')
    recipe = load_layer_recipe(str(path))
    assert (recipe.name, recipe.target.o.algorithm, recipe.target.keep) == (
        "mine",
        "W4A16_NVFP4",
        ("model.layers.0.*",),
    )


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('summary = "mine"\n[target]\no = { weights = "nvfp4" }\n', encoding="utf-8-sig")
    assert load_layer_recipe(str(path)).summary == "mine"


REFUSED = {
    "unknown_key": ('[target]\nattention = { weights = "fp8" }', "Object contains unknown field `attention`"),
    "unknown_inner_key": ('[target]\no = { weight = "fp8" }', "Object contains unknown field `weight`"),
    "unknown_form": ('[target]\no = { weights = "int3" }', "Invalid enum value 'int3'"),
    "drafter_key": ('[drafter]\nexperts = { weights = "fp8" }', "Object contains unknown field `experts`"),
    "integers": ('[target]\no = { weights = "int8" }', "recipe `bad` makes `o` int8, which only builds for a CPU read"),
    "no_toml": ("[target", "is no recipe"),
    "deep": ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    "pair": ('[target]\no = { weights = "fp8" }', "pairs weights in `fp8` with activations in `none`"),
    "embedding": (
        '[target]\nembedding = { weights = "fp8", activations = "fp8" }',
        "`target.embedding` is to be quantized, which no loader reads",
    ),
    "two_algorithms": (
        '[drafter]\no = { weights = "nvfp4" }\ndown = { weights = "fp8", activations = "fp8" }',
        "`drafter.o` is W4A16_NVFP4 and `drafter.down` FP8",
    ),
    "cast": ('[target]\npacked_experts = "cast"', "casts to NVFP4, but `target.experts` has weights in `stored`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_recipe_cannot_say_is_refused(tmp_path: Path, case: str) -> None:
    text, message = REFUSED[case]
    (tmp_path / "bad.toml").write_text(f'summary = "bad"\n{text}\n')
    with pytest.raises(UsageError, match=message):
        load_layer_recipe(str(tmp_path / "bad.toml"))


def test_a_wrong_key_is_answered_with_the_right_ones(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('summary = "bad"\n[target]\nqkw = { weights = "fp8" }\n')
    with pytest.raises(UsageError) as caught:
        load_layer_recipe(str(tmp_path / "bad.toml"))
    assert "[target] takes embedding, lm_head, qkv, o, gate_up," in caught.value.hint
    assert "`weights` is stored, bf16, fp8, nvfp4" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nvfp8", "unknown recipe `nvfp8`"),
        ("int4", "`int4` is one, but not for this"),
        ("nvfp4-awq", "`nvfp4-awq` is one, but not for this"),
        ("no.toml", "`no.toml` is no file"),
    ],
)
def test_an_unknown_recipe_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_layer_recipe(name)
