"""Prompts: the shipped sets, the shapes of files, and what is no prompt."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from peagle_trt.bench.prompt_sets import HUMANEVAL_INSTRUCTION, SHIPPED, read_prompts
from peagle_trt.errors import UsageError


@pytest.mark.parametrize(("name", "count"), [("mt-bench", 80), ("humaneval", 164), ("gsm8k", 1319)])
def test_a_shipped_set_is_whole(name: str, count: int) -> None:
    assert len(read_prompts(name).prompts) == count


def test_every_shipped_set_has_its_licence() -> None:
    import peagle_trt.bench

    folder = Path(peagle_trt.bench.__path__[0]) / "prompts"
    assert all((folder / f"{name}.LICENSE").is_file() for name in SHIPPED)


def test_humaneval_gets_the_published_instruction() -> None:
    (prompt,) = read_prompts("humaneval", 1).prompts
    assert prompt.startswith(HUMANEVAL_INSTRUCTION + "from typing import List")


@pytest.mark.parametrize(
    "line",
    [
        '{"turns": ["ask", "again"]}',
        '{"question_id": 81, "category": "writing", "turns": ["ask", "again"], "reference": []}',
        '{"question_id": "a", "category": "coding", "turns": ["ask"], "source": "x", "src_id": "1"}',
        '{"turns": [{"role": "user", "content": "ask"}]}',
        '{"question": "ask", "answer": "no"}',
        '{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "ask"}]}',
        '{"prompt": "ask"}',
    ],
)
def test_a_file_may_have_any_of_the_shapes(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n\n")
    assert read_prompts(str(path)).prompts == ("ask",)


def test_a_compressed_file_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "ask"}\n'))
    assert read_prompts(str(path)).prompts == ("ask",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts"),
        (b"not json\n", "line 1 is not JSON"),
        (b'{"prompt": "a"}\n{"text": "b"}\n', "line 2 has no prompt"),
        (b'{"turns": []}\n', "line 1 has no prompt"),
        (b'{"prompt": 3}\n', "line 1 has no prompt"),
        (b'["a"]\n', "line 1 has no prompt"),
        (b'{"messages": ["a"]}\n', "line 1 has no prompt"),
        (b'{"turns": {"a": 1}}\n', "line 1 has no prompt"),
        (b'{"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING X"]}\n', "line 1 is a placeholder"),
        (b"[" * 100_000 + b"\n", "line 1 is not JSON"),
        (b"\xff\xfe", "cannot read"),
    ],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_prompts(str(path))


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\u2029"])
def test_a_separator_inside_a_prompt_ends_no_line(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"prompt": "a{separator}b"}}\r\n{{"prompt": "c"}}', encoding="utf-8")
    assert read_prompts(str(path)).prompts == (f"a{separator}b", "c")


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert read_prompts(str(tmp_path / "a.jsonl")).prompts == ("a",)


def test_a_compressed_file_with_a_damaged_block_is_refused(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b'{"prompt": "a"}\n' * 50))
    content[10] = 0xFF  # The kind of the first block; this one does not exist.
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    with pytest.raises(UsageError, match="cannot read the prompts"):
        read_prompts(str(tmp_path / "a.jsonl.gz"))


def test_a_name_that_is_not_utf8_can_stand_in_a_document(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")
    Path(path).write_text('{"prompt": "a"}\n')
    assert read_prompts(path).name.endswith("\\xff.jsonl")


def test_a_file_that_only_claims_to_be_compressed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(b"plain")
    with pytest.raises(UsageError, match="cannot read"):
        read_prompts(str(path))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        read_prompts("mtbench")
    assert "mt-bench" in caught.value.hint


def test_prompts_are_chosen_by_category(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text('{"turns": ["a"], "category": "math"}\n{"turns": ["b"], "category": "qa"}\n{"turns": ["c"]}\n')
    chosen = read_prompts(str(path), categories=["qa"])
    assert (chosen.prompts, chosen.categories) == (("b",), ("qa",))
    with pytest.raises(UsageError, match="no prompts of code") as caught:
        read_prompts(str(path), categories=["code"])
    assert "math, qa" in caught.value.hint


def test_a_parquet_file_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Parquet") as caught:
        read_prompts(str(tmp_path / "test.parquet"))
    assert "to_json" in caught.value.hint
