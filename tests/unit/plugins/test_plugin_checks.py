"""What a plugin refuses, on sizes that are plain numbers."""

from __future__ import annotations

import pytest

from peagle_trt_plugins.plugin_checks import GivenInput, PluginError, read_call, require_known
from peagle_trt_plugins.plugin_forms import FORMS, PluginCall, PluginForm

BY_NAME = {form.name: form for form in FORMS}
SIZES = {"B": 2, "R": 4, "K": 3, "W": 6, "H": 32, "V": 50, "D": 40, "E": 8}
ATTRIBUTES = {"epsilon": 1e-5, "norm_before_residual": 0, "candidates": 4, "contract_version": 1}
EXACT = {"float": "bf16", "float32": "fp32", "int32": "i32", "int64": "i64"}


def read(
    form: PluginForm,
    sizes: dict[str, int | None] | None = None,
    attributes: dict[str, float] | None = None,
    elements: dict[str, str] | None = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> PluginCall:
    """A call of the form as given, the rest as the contract wants it; a size of None is open."""
    numbers = {**SIZES, **(sizes or {})}
    inputs = tuple(
        GivenInput(
            element=(elements or {}).get(port.name, EXACT[port.element]),
            shape=(shapes or {}).get(port.name, tuple(numbers[letter] for letter in port.dims)),
        )
        for port in form.inputs
    )
    wanted = [*(attribute.name for attribute in form.attributes), "contract_version"]
    return read_call(form, inputs, attributes or {name: ATTRIBUTES[name] for name in wanted}, lambda size: size)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_keeps_the_contract_is_read(form: PluginForm) -> None:
    call = read(form)
    require_known(form, call)
    assert set(call.elements) == {port.name for port in (*form.inputs, *form.outputs)}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_another_version_of_the_contract_is_refused_by_both_names(form: PluginForm) -> None:
    with pytest.raises(PluginError, match=rf"peagle::{form.name}: .* keeps version 2 .* plugins keep 1"):
        read(form, attributes={**ATTRIBUTES, "contract_version": 2})


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_graph_without_a_version_is_refused(form: PluginForm) -> None:
    with pytest.raises(PluginError, match="keeps version None"):
        read(form, attributes={"epsilon": 1e-5})


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_another_rank_is_refused(form: PluginForm) -> None:
    first = form.inputs[0]
    with pytest.raises(PluginError, match=rf"rank of `{first.name}` is 1; expected {len(first.dims)}"):
        read(form, shapes={first.name: (1,)})


def test_one_letter_of_two_sizes_is_refused() -> None:
    with pytest.raises(PluginError, match="H of `lm_head` is 31; expected 32"):
        read(BY_NAME["SelectBlocks"], shapes={"lm_head": (40, 31)})


@pytest.mark.parametrize(
    ("form", "port", "element", "expected"),
    [
        ("ParallelDraft", "num_accepted", "i64", "i32"),
        ("ParallelDraft", "hidden_norm_weight", "fp32", "bf16"),
        ("ParallelDraft", "embedding", "INT8", "fp32 or fp16 or bf16"),
        ("ParallelDraft", "fused_hidden", "FP8", "fp32 or fp16 or bf16"),
        ("SelectBlocks", "sample_rows", "fp32", "i32"),
        ("MergeBest", "draft_to_target", "i32", "i64"),
        ("MergeCandidates", "temperature", "fp16", "fp32"),
    ],
)
def test_a_type_that_no_kernel_takes_is_refused(form: str, port: str, element: str, expected: str) -> None:
    with pytest.raises(PluginError, match=f"type of `{port}` is {element}; expected {expected}"):
        read(BY_NAME[form], elements={port: element})


@pytest.mark.parametrize("table", ["fp32", "fp16", "bf16"])
def test_a_table_may_be_of_its_own_type(table: str) -> None:
    assert read(BY_NAME["SelectBlocks"], elements={"lm_head": table}).elements["lm_head"] == table


@pytest.mark.parametrize(
    ("form", "values", "message"),
    [
        ("SelectBlocks", {"candidates": 0}, "`candidates` is 0; expected 1..16"),
        ("SelectBlocks", {"candidates": 17}, "`candidates` is 17; expected 1..16"),
        ("MergeCandidates", {"candidates": 17}, "`candidates` is 17; expected 1..16"),
        ("ParallelDraft", {"epsilon": 0.0}, "`epsilon` is 0.0; expected a number above 0"),
        ("ParallelDraft", {"norm_before_residual": 2}, "`norm_before_residual` is 2; expected 0 or 1"),
    ],
)
def test_an_attribute_that_means_nothing_is_refused(form: str, values: dict[str, float], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        read(BY_NAME[form], attributes={**ATTRIBUTES, **values})


def test_more_candidates_than_the_vocabulary_has_are_refused() -> None:
    with pytest.raises(PluginError, match=r"`candidates` is 4; expected 1\.\.3"):
        read(BY_NAME["SelectBlocks"], {"D": 3})


def test_a_missing_attribute_is_named() -> None:
    with pytest.raises(PluginError, match=r"without \['candidates'\]"):
        read(BY_NAME["SelectBlocks"], attributes={"contract_version": 1})


@pytest.mark.parametrize(("sizes", "message"), [({"H": 8193}, "H is 8193"), ({"K": 17}, "K is 17")])
def test_a_size_above_the_contracts_limit_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        read(BY_NAME["ParallelDraft"], sizes)


@pytest.mark.parametrize(
    ("form", "letter", "port"),
    [
        ("ParallelDraft", "H", "fused_hidden"),
        ("SelectBlocks", "D", "lm_head"),
        ("MergeBest", "E", "block_values"),
        ("MergeCandidates", "E", "block_ids"),
    ],
)
def test_an_open_size_that_the_kernel_bakes_in_is_named(form: str, letter: str, port: str) -> None:
    call = read(BY_NAME[form], {letter: None})
    with pytest.raises(PluginError, match=rf"\['{letter}'\] not known .* `{port}`"):
        require_known(BY_NAME[form], call)
