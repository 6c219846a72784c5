"""Forged checkpoints through the command line: exit code 0 or 4, one document, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle_trt.cli.main import run
from tests.support.checkpoints import write_raw
from tests.support.fuzzing import JSON_VALUES, bounded, ending, examples, fuzzed, key_mutations, nested
from tests.support.models import save_drafter

NAMES = st.one_of(
    st.sampled_from(["fc.weight", "mask_hidden", "\x1b]0;x\x07", "\ud800", "x" * 5000]), st.text(max_size=5)
)
ENTRIES = st.one_of(
    JSON_VALUES,
    st.fixed_dictionaries({"dtype": JSON_VALUES, "shape": JSON_VALUES, "data_offsets": JSON_VALUES}),
    st.just({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
)


@pytest.fixture
def head(tmp_path: Path) -> Path:
    save_drafter(tmp_path / "head")
    return tmp_path / "head"


def check(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    with ending():
        code = run(["--json", "inspect", str(path)])
    captured = capsys.readouterr()
    document: dict[str, Any] = json.loads(captured.out)
    assert code in (0, 4), captured.err
    assert document["ok"] == (code == 0)
    assert "Traceback" not in captured.err
    # As the streams write it: nothing in it that a terminal would obey.
    written = captured.err.encode("utf-8", "backslashreplace").decode()
    assert written.replace("\n", "").isprintable()


@examples(60)
def test_forged_configs(num_examples: int, head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((head / "config.json").read_text())

    @fuzzed(num_examples)
    @given(key_mutations(config, ("rope_scaling", "architectures", "pard_token", "fc_norm")))
    def try_config(changed: dict[str, Any]) -> None:
        (head / "config.json").write_text(json.dumps(changed))
        check(capsys, head)

    with bounded():
        try_config()


@examples(60)
def test_forged_headers(num_examples: int, head: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @fuzzed(num_examples)
    @given(st.dictionaries(NAMES, ENTRIES, min_size=1, max_size=2))
    def try_header(header: dict[str, Any]) -> None:
        write_raw(head / "model.safetensors", json.dumps(header).encode(), bytes(4))
        check(capsys, head)

    with bounded():
        try_header()


KEYS = {
    "architectures": ["\x1b[31mred"],
    "rope_scaling": {"rope_type": "\x1b[31mred" * 1000},
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": nested(950)},
    "mask_token_id": 10**400,
}


@pytest.mark.parametrize(("key", "value"), KEYS.items())
def test_what_others_wrote_is_quoted_with_care(
    key: str, value: object, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps(config | {key: value}))
    check(capsys, head)
    run(["inspect", str(head)])
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert max(map(len, captured.err.splitlines()), default=0) < 2000
