"""Settings are checked against the keys that servers take."""

from __future__ import annotations

from typing import Any

import pytest

from peagle_trt.bundle.fields import check_document, read_fields
from peagle_trt.bundle.yaml_text import write_yaml
from peagle_trt.errors import PlanError

TABLES = ("trtllm_1.2.1", "trtllm_1.4", "vllm")


@pytest.mark.parametrize(
    ("document", "message", "hint"),
    [
        # A real configuration of a real report: TensorRT-LLM issue 6827.
        ({"speculative_config": {"max_draft_len": "4"}}, "expected a value of kind integer", "quotes"),
        (
            {"extra_llm_api_options": {"max_batch_size": 4}},
            "`extra_llm_api_options.max_batch_size` is no setting",
            "max_",
        ),
        ({"kv_cache_config": {"enable_block_resue": False}}, "enable_block_resue", "enable_block_reuse"),
        ({"max_batch_size": True}, "is True", "quotes"),
        ({"enable_chunked_prefill": 1}, "expected a value of kind flag", "quotes"),
        ({"speculative_config": {"decoding_type": "PEagle"}}, "PEagle.; TensorRT-LLM .* takes Eagle", "one of them"),
    ],
)
@pytest.mark.parametrize("table", TABLES[:2])
def test_a_setting_that_a_server_would_refuse_is_named(
    table: str, document: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        check_document(document, read_fields(table))
    assert hint in caught.value.hint


def test_releases_spell_the_heads_folder_differently() -> None:
    older, newer = (
        {"speculative_config": {name: "./drafter"}} for name in ("speculative_model_dir", "speculative_model")
    )
    check_document(older, read_fields("trtllm_1.2.1"))
    check_document(newer, read_fields("trtllm_1.4"))
    with pytest.raises(PlanError, match="speculative_model"):
        check_document(newer, read_fields("trtllm_1.2.1"))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_where_it_was_read(name: str) -> None:
    table = read_fields(name)
    assert ".py" in table.source
    assert set(table.choices) <= set(table.fields)


def test_what_is_written_is_read_back_by_another_yaml() -> None:
    import yaml

    document = {
        "a": 1,
        "b": {"c": [1, 2], "d": "yes", "e": 0.8},
        "f": False,
        "g": None,
        "h": "é: #",
        "i": {"j": {"k": []}},
    }
    assert yaml.safe_load(write_yaml(document, ["heading: x"])) == document  # type: ignore[arg-type]
