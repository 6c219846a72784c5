"""The table of peers, and what names them; the engines themselves are not run here."""

from __future__ import annotations

import argparse
from typing import Any, cast

import pytest

from scripts.compare_peers import OURS, Engine, _names, _table
from scripts.peer_worker import ENGINES
from scripts.peers import PEERS


def engine(name: str, method: str, *cpu_seconds: float, tokens: tuple[int, ...] = (1, 2)) -> Engine:
    found = Engine(name=name, method=method, process=cast(Any, None), version="1.0")
    found.answers = [{"tokens": list(tokens), "seconds": 2 * each, "cpu_seconds": each} for each in cpu_seconds]
    return found


def test_every_peer_has_a_worker() -> None:
    assert PEERS.keys() == ENGINES.keys()


def test_a_row_is_over_our_plain_decoding_of_the_same_prompts() -> None:
    engines = [engine(OURS, "plain", 1.0, 2.0), engine("vllm", "plain", 2.0, 4.0, tokens=(1, 3))]
    ours, theirs = _table(engines, {}).splitlines()[2:]
    assert "| plain | 0.7 | 1.3 | 1.00 (1.00-1.00) | 2 of 2 |" in ours
    assert "| plain | 0.3 | 0.7 | 0.50 (0.50-0.50) | 0 of 2 |" in theirs


def test_a_peer_that_failed_is_named_with_its_reason() -> None:
    table = _table([engine(OURS, "plain", 1.0), engine("openvino", "plain")], {"openvino": "it ended with 1"})
    assert table.splitlines()[-1] == "| openvino | - | - | - | - | - | failed: it ended with 1 |"
    assert len(table.splitlines()) == 4


def test_an_unknown_peer_is_refused() -> None:
    assert _names("vllm,openvino") == ("vllm", "openvino")
    with pytest.raises(argparse.ArgumentTypeError, match="unknown: sglang"):
        _names("sglang,vllm")
