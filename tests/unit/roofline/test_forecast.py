"""Forecasts, formats and memory."""

from __future__ import annotations

import pytest

from peagle_trt import catalog
from peagle_trt.catalog import HubRepository
from peagle_trt.errors import UsageError
from peagle_trt.quant.layer_recipes import BUILD_RECIPES, LayerScheme
from peagle_trt.quant.registry import find_recipe
from peagle_trt.roofline import (
    PRECISIONS,
    Forecast,
    Load,
    choose_formats,
    curve_from_shares,
    default_cache_format,
    find_device,
    find_pair,
    forecast,
    memory_need,
)

NOTHING_ACCEPTED = curve_from_shares([0.0] * 5, source="a test")
ALL_ACCEPTED = curve_from_shares([1.0] * 5, source="a test")


def forecast_of(name: str, shares: object = None, *, concurrency: tuple[int, ...] = (1, 8)) -> Forecast:
    pair = find_pair(name)
    load = Load(batch_size=1, context_tokens=1000, formats=pair.formats, cache_format="bf16")
    return forecast(
        find_device("b200"),
        pair.target,
        pair.drafter,
        load,
        concurrency=concurrency,
        draft_tokens=(1, 3, 5),
        acceptance=shares or pair.curve("humaneval"),  # type: ignore[arg-type]
        sequence_tokens=2000,
    )


def test_rows_come_by_load_and_k_with_plain_decoding_first() -> None:
    rows = forecast_of("gpt-oss-20b").rows
    assert [(row.concurrency, row.draft_tokens) for row in rows] == [(c, k) for c in (1, 8) for k in (0, 1, 3, 5)]


def test_a_speedup_is_over_plain_decoding_at_the_same_load() -> None:
    for plain, *speculative in (forecast_of("gpt-oss-20b").rows[:4], forecast_of("gpt-oss-20b").rows[4:]):
        assert plain.speedup == 1
        for row in speculative:
            assert row.speedup == pytest.approx(row.tokens_per_second / plain.tokens_per_second)
            assert row.tokens_per_second == pytest.approx(row.concurrency * row.acceptance_length / row.step.seconds)


def test_plain_decoding_is_best_where_nothing_is_accepted() -> None:
    assert forecast_of("gpt-oss-20b", NOTHING_ACCEPTED).best(8).draft_tokens == 0


def test_the_largest_k_is_best_where_all_is_accepted() -> None:
    assert forecast_of("gpt-oss-20b", ALL_ACCEPTED).best(1).draft_tokens == 5


@pytest.mark.parametrize("name", ["gpt-oss-120b", "gpt-oss-20b", "qwen3-coder-30b-a3b"])
def test_a_target_takes_the_bytes_of_its_published_files(name: str) -> None:
    entry = catalog.find_entry(name)
    assert isinstance(entry.target, HubRepository)
    assert entry.target.size_bytes is not None
    # Norms, biases and sinks are left out: less than half a percent.
    assert forecast_of(name).memory.target_bytes == pytest.approx(entry.target.size_bytes, rel=5e-3)


def test_caches_hold_every_request_in_every_layer() -> None:
    memory = forecast_of("gpt-oss-20b", concurrency=(1, 64)).memory
    # 64 requests of 2000 tokens, 24 and 4 layers, keys and values of 8 heads of 64, two bytes each.
    assert memory.cache_bytes == 64 * 2000 * (24 + 4) * 2 * 8 * 64 * 2


def test_a_pair_that_is_too_large_does_not_fit() -> None:
    pair = find_pair("gpt-oss-120b")
    load = Load(batch_size=1, context_tokens=1000, formats=pair.formats, cache_format="bf16")
    needs = [
        memory_need(find_device(name), pair.target, pair.drafter, load, sequence_tokens=1000, draft_tokens=5)
        for name in ("b200", "cpu")
    ]
    assert [need.fits for need in needs] == [True, False]
    assert needs[0].total_bytes == needs[1].total_bytes


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["gpt-oss-120b", "smollm2-135m"])
def test_every_precision_has_formats(precision: str, name: str) -> None:
    pair = find_pair(name)
    formats = choose_formats(precision, pair.formats, has_experts=pair.target.num_experts > 0)
    assert default_cache_format(formats) == ("fp32" if formats.attention == "fp32" else "bf16")


def test_experts_in_mxfp4_stay_in_every_build() -> None:
    published = find_pair("gpt-oss-120b").formats
    names = ("published", "bf16", "fp8", "nvfp4", "nvfp4-experts")
    assert [choose_formats(name, published, has_experts=True).feed_forward for name in names] == ["mxfp4"] * 5
    others = find_pair("qwen3-coder-30b-a3b").formats
    assert choose_formats("nvfp4", others, has_experts=True).feed_forward == "nvfp4"


@pytest.mark.parametrize("name", sorted({*PRECISIONS} & {*BUILD_RECIPES}))
def test_a_precision_says_what_a_build_of_that_name_holds(name: str) -> None:
    recipe, published = find_recipe(name), find_pair("tiny").formats
    found = choose_formats(name, published, has_experts=False)
    plain = "fp32" if name == "fp32" else "bf16"

    def form(scheme: LayerScheme) -> str:
        return plain if scheme.weights in ("stored", "bf16") else scheme.weights

    assert found.attention == form(recipe.target.qkv) == form(recipe.target.o)
    assert found.feed_forward == form(recipe.target.down)
    assert found.drafter == form(recipe.drafter.qkv)
    assert found.drafter_head == form(recipe.drafter.fc) == form(recipe.drafter.lm_head)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown precision `int3`"):
        choose_formats("int3", find_pair("tiny").formats, has_experts=False)
