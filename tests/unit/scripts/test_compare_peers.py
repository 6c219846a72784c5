"""The table of peers, who fails, and what they are asked; small workers stand in for the engines."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from peagle_trt.catalog import find_entry, target_path
from peagle_trt.readers.target import read_target
from scripts.compare_peers import Batch, _names, _refuse_other_pair, decode
from scripts.llama_cpp_peer import copied
from scripts.peer_process import Engine, PeerError, start_engine
from scripts.peer_table import document, first_difference, table
from scripts.peer_worker import ENGINES, padded
from scripts.peers import OURS, PEERS
from scripts.write_gguf import interleave, write_gguf

ROOT = Path(__file__).parents[3]
KEY = ("gsm8k", 1)
WORKER = """
import json, sys, time
for number, line in enumerate(sys.stdin):
    prompts = json.loads(line)["prompts"]
    {fault}
    print(json.dumps(dict(tokens=[[1, 2]] * len(prompts), seconds=1.0, cpu_seconds=1.0)), flush=True)
"""


def engine(name: str, method: str, *cpu_seconds: float, tokens: tuple[int, ...] = (1, 2)) -> Engine:
    found = Engine(
        name=name, method=method, process=cast(Any, None), log_path=Path(), timeout_seconds=1.0, version="1.0"
    )
    found.rounds[KEY] = [{"tokens": [list(tokens)], "seconds": 2 * each, "cpu_seconds": each} for each in cpu_seconds]
    return found


def running(folder: Path, name: str, method: str, fault: str = "pass", timeout_seconds: float = 20.0) -> Engine:
    command = [sys.executable, "-c", WORKER.format(fault=fault)]
    log_path = folder / f"{name}-{method}.log"
    return start_engine(
        name, method, command, root=folder, log_path=log_path, threads=1, timeout_seconds=timeout_seconds
    )


def decoded(engines: list[Engine], *batches: Batch) -> dict[tuple[str, str], str]:
    failures: dict[tuple[str, str], str] = {}
    decode(engines, list(batches), failures)
    for each in engines:
        each.close()
    return failures


def test_every_peer_has_a_worker() -> None:
    assert PEERS.keys() == ENGINES.keys()


def test_only_methods_that_a_peer_has_can_batch() -> None:
    assert all(set(peer.batching) <= {*peer.methods, "eagle3"} for peer in PEERS.values())


def test_a_row_is_over_our_plain_decoding_of_the_same_prompts() -> None:
    engines = [engine(OURS, "plain", 1.0, 2.0), engine("vllm", "plain", 2.0, 4.0, tokens=(1, 3))]
    ours, theirs = table(engines, {}).splitlines()[4:]
    assert "| plain | 0.7 | 1.3 | 1.00 (1.00-1.00) | 1.00 | 2 of 2 |" in ours
    assert "| plain | 0.3 | 0.7 | 0.50 (0.50-0.50) | 0.50 | 0 of 2 (1, 1) |" in theirs


def test_a_peer_that_failed_is_named_with_its_reason() -> None:
    text = table([engine(OURS, "plain", 1.0)], {("openvino", "plain"): "it ended with 1"})
    assert text.splitlines()[-1] == "* openvino, plain: failed: it ended with 1"


def test_without_our_own_answers_there_are_rates_and_no_ratios() -> None:
    text = table([engine("vllm", "plain", 1.0)], {(OURS, "plain"): "it ended with 1"})
    assert "| vllm 1.0 | plain | 1.0 | 2.0 | - | - | - |" in text


def test_nothing_measured_is_said() -> None:
    assert table([], {}) == "nothing was measured"


def test_an_engine_that_failed_half_way_is_compared_where_it_answered() -> None:
    found = document([engine(OURS, "plain", 1.0, 2.0), engine("vllm", "plain", 2.0)], {}, {"threads": 2})
    ours, theirs = cast(list[dict[str, Any]], found["cells"])
    assert (ours["num_answers"], theirs["num_answers"], theirs["ratio_cpu"]) == (2, 1, 0.5)
    assert found["settings"] == {"threads": 2} and json.dumps(found)


@pytest.mark.parametrize(("tokens", "place"), [([1, 2], None), ([1, 3], 1), ([1], 1), ([1, 2, 3], 2)])
def test_the_first_token_that_differs_is_found(tokens: list[int], place: int | None) -> None:
    assert first_difference(tokens, [1, 2]) == place


def test_the_first_answer_of_every_number_in_flight_is_not_counted(tmp_path: Path) -> None:
    ours = running(tmp_path, OURS, "plain")
    assert decoded([ours], ("gsm8k", 1, [[5]]), ("gsm8k", 2, [[5], [6]])) == {}
    assert {key: len(rounds) for key, rounds in ours.rounds.items()} == {("gsm8k", 1): 1, ("gsm8k", 2): 1}
    assert ours.rounds["gsm8k", 2][0]["tokens"] == [[1, 2], [1, 2]]


def test_one_method_of_a_peer_fails_and_the_other_goes_on(tmp_path: Path) -> None:
    good = running(tmp_path, "openvino", "plain")
    bad = running(tmp_path, "openvino", "prompt-lookup", fault="sys.exit('no such operation')")
    failures = decoded([good, bad], ("gsm8k", 1, [[5]]))
    assert failures == {("openvino", "prompt-lookup"): "gsm8k, 1 in flight: ended with 1: no such operation"}
    assert len(good.rounds[KEY]) == 1


def test_a_peer_that_hangs_is_ended(tmp_path: Path) -> None:
    bad = running(tmp_path, "vllm", "plain", fault="time.sleep(600)", timeout_seconds=0.5)
    with pytest.raises(PeerError, match="no answer in 0 s"):
        bad.ask({"prompts": [[1]]})
    bad.close()
    assert bad.process.returncode == -9


def test_a_method_that_does_not_batch_is_asked_one_by_one_only(tmp_path: Path) -> None:
    lookup = running(tmp_path, "transformers", "prompt-lookup")
    plain = running(tmp_path, "transformers", "plain")
    assert decoded([plain, lookup], ("gsm8k", 2, [[5], [6]])) == {}
    assert not lookup.rounds
    assert "Do not batch: transformers prompt-lookup." in table([plain, lookup], {})


def test_an_unknown_peer_is_refused() -> None:
    assert _names("vllm,openvino") == ("vllm", "openvino")
    with pytest.raises(argparse.ArgumentTypeError, match="unknown: sglang"):
        _names("sglang,vllm")


def test_a_folder_of_another_pair_is_refused(tmp_path: Path) -> None:
    _refuse_other_pair(tmp_path / "pair.txt", "one")
    _refuse_other_pair(tmp_path / "pair.txt", "one")
    with pytest.raises(Exception, match="another pair"):
        _refuse_other_pair(tmp_path / "pair.txt", "two")


def test_shorter_prompts_are_filled_up_in_front() -> None:
    assert padded([[5, 6, 7], [8]]) == ([[5, 6, 7], [0, 0, 8]], [[1, 1, 1], [0, 0, 1]])


@pytest.mark.parametrize(
    ("text", "drafts"),
    [([1, 2, 3, 9, 2, 3], [9, 2]), ([7, 1, 7, 2, 7], [2, 7]), ([1, 2, 3], []), ([4], [])],
)
def test_drafts_are_what_followed_the_longest_and_last_match(text: list[int], drafts: list[int]) -> None:
    assert copied(text, 2) == drafts


def test_the_halves_of_a_head_are_put_side_by_side() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert interleave(rows, 2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_written_gguf_file_reads_as_the_same_tensors(tmp_path: Path) -> None:
    import gguf

    target = target_path(find_entry("tiny"))
    write_gguf(target, tmp_path / "models" / "target.gguf")
    weights = read_target(target).weights
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "models" / "target.gguf").tensors}
    assert len(found) == len(weights)
    assert np.array_equal(found["blk.0.attn_v.weight"], weights.load("layers.0.v_proj"))
    assert np.array_equal(found["token_embd.weight"], weights.load("embed_tokens"))
