"""Points on which a head and its target are judged, each with a case that is right and one that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from peagle_trt.readers import Finding, judge_head, read_head, read_target
from peagle_trt.readers.rows import load_rows, spread_rows
from peagle_trt.spec import TensorSpec
from peagle_trt.spec.tensor import TensorLocation
from tests.support.checkpoints import edit_config, edit_tensors, save_byte_tokenizer
from tests.support.heads import respell
from tests.support.models import HIDDEN, VOCABULARY, save_drafter

RNG = np.random.default_rng(5)


def judge(target_folder: Path | None, head_folder: Path, mask_token_id: int | None = None) -> dict[str, Finding]:
    target = read_target(target_folder) if target_folder else None
    num_layers = target.config.num_layers if target else None
    head = read_head(head_folder, num_target_layers=num_layers, mask_token_id=mask_token_id)
    return {finding.what: finding for finding in judge_head(head, target)}


def levels(findings: dict[str, Finding], *whats: str) -> list[str]:
    return [findings[what].level for what in whats]


MASKS = {
    "fresh": (RNG.standard_normal(192), "warning"),
    "zero": (np.zeros(192), "warning"),
    "constant": (np.ones(192), "warning"),
    "wider": (3 * RNG.standard_normal(192), "ok"),
    "narrow": (0.1 * RNG.standard_normal(192), "ok"),
    "shifted": (1 + RNG.standard_normal(192), "ok"),
}


@pytest.mark.parametrize(("values", "level"), MASKS.values(), ids=MASKS.keys())
def test_a_mask_state_that_never_left_its_start_is_noticed(
    drafter_folder: Path, values: np.ndarray, level: str
) -> None:
    edit_tensors(drafter_folder, mask_hidden=values.astype(np.float32).reshape(1, 1, -1))
    assert levels(judge(None, drafter_folder), "`mask_hidden`") == [level]


TABLES: dict[str, tuple[float, float, str, str]] = {
    # Share of the target's table, share of a random one: level of the table, level of the mask token's row.
    "copied": (1.0, 0.0, "note", "warning"),
    "trained": (1.0, 0.1, "ok", "ok"),
    "random": (0.0, 1.0, "warning", "ok"),
}


@pytest.mark.parametrize(("share", "noise", "table", "row"), TABLES.values(), ids=TABLES.keys())
def test_an_embedding_table_is_compared_with_the_targets(
    llama_folder: Path, drafter_folder: Path, share: float, noise: float, table: str, row: str
) -> None:
    theirs = read_target(llama_folder).weights.load("embed_tokens")
    own = share * theirs + noise * 0.15 * RNG.standard_normal(theirs.shape)
    edit_tensors(drafter_folder, embed_tokens__weight=own.astype(np.float32))
    findings = judge(llama_folder, drafter_folder)
    assert levels(findings, "embedding table", "mask token's embedding") == [table, row]


def test_a_shared_table_is_said_to_be_shared(llama_folder: Path, drafter_folder: Path) -> None:
    found = judge(llama_folder, drafter_folder)["mask token's embedding"]
    assert (found.level, found.found) == ("note", "the target's own row; the head carries no table")


def test_the_other_way_to_count_layers_is_shown(llama_folder: Path, drafter_folder: Path) -> None:
    found = judge(llama_folder, drafter_folder)["numbering of auxiliary layers"]
    assert "the file counts inputs: streams entering 1, 3, 5; counted the other way 2, 4, 6" in found.found


@pytest.mark.parametrize(("layers", "level"), [((2, 7, 11), "ok"), ((1, 6, 10), "warning"), ((0, 3, 5), "note")])
def test_layers_that_would_be_usual_the_other_way_are_suspicious(
    tmp_path: Path, layers: tuple[int, ...], level: str
) -> None:
    from tests.support.models import save_target

    save_target(tmp_path / "target", num_hidden_layers=14)
    save_drafter(tmp_path / "head", eagle_config={"eagle_aux_hidden_state_layer_ids": list(layers)})
    assert levels(judge(tmp_path / "target", tmp_path / "head"), "numbering of auxiliary layers") == [level]


def test_layers_that_were_not_named_are_noted(llama_folder: Path, tmp_path: Path) -> None:
    save_drafter(tmp_path)
    respell(tmp_path, "specforge")
    # The usual layers of a target of six are 2, 3, 3, so the pair is refused, but the numbering is judged all the same.
    findings = judge(llama_folder, tmp_path, mask_token_id=299)
    assert levels(findings, "auxiliary layers", "numbering of auxiliary layers") == ["refused", "note"]


@pytest.mark.parametrize(("positions", "level"), [(1023, "warning"), (1024, "note"), (1029, "ok")])
def test_positions_reach_past_the_context(llama_folder: Path, drafter_folder: Path, positions: int, level: str) -> None:
    edit_config(drafter_folder, max_position_embeddings=positions, num_depths=5)
    assert levels(judge(llama_folder, drafter_folder), "reach of positions") == [level]


MAPS: dict[str, tuple[np.ndarray, str]] = {
    "ids_for_offsets": (np.arange(64), "warning"),
    "identity": (np.zeros(64), "ok"),
    "offsets": (np.sort(RNG.choice(200, 64, replace=False)) - np.arange(64), "ok"),
    "astray": (np.full(64, 290), "refused"),
}


@pytest.mark.parametrize(("offsets", "level"), MAPS.values(), ids=MAPS.keys())
def test_a_vocabulary_map_is_judged(tmp_path: Path, offsets: np.ndarray, level: str) -> None:
    save_drafter(tmp_path, draft_vocab_size=64)
    edit_tensors(tmp_path, d2t=offsets.astype(np.int64))
    assert levels(judge(None, tmp_path), "vocabulary map `d2t`") == [level]


def test_maps_that_contradict_each_other_are_noticed(tmp_path: Path) -> None:
    tensors = save_drafter(tmp_path, draft_vocab_size=64)
    kept = np.zeros(VOCABULARY, bool)
    kept[tensors["d2t"] + np.arange(64)] = True
    edit_tensors(tmp_path, t2d=kept)
    assert levels(judge(None, tmp_path), "inverse map `t2d`") == ["ok"]
    edit_tensors(tmp_path, t2d=~kept)
    assert levels(judge(None, tmp_path), "inverse map `t2d`") == ["warning"]


TOKENS: dict[str, tuple[int, dict[str, Any], str]] = {
    "no_token": (299, {}, "ok"),
    "ordinary": (65, {}, "warning"),
    "end": (256, {"eos_token_id": 256}, "warning"),
    "special": (256, {}, "ok"),
    "in_the_template": (257, {}, "warning"),
}


@pytest.mark.parametrize(("token", "settings", "level"), TOKENS.values(), ids=TOKENS.keys())
def test_a_mask_token_that_texts_hold_is_noticed(
    target_folder: Path, drafter_folder: Path, token: int, settings: dict[str, Any], level: str
) -> None:
    from tokenizers import Tokenizer

    save_byte_tokenizer(target_folder)
    tokenizer = Tokenizer.from_file(str(target_folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<reserved>", "<turn>"])
    tokenizer.save(str(target_folder / "tokenizer.json"))
    (target_folder / "chat_template.jinja").write_text("<turn>{{ messages }}")
    edit_config(target_folder, **settings)
    edit_config(drafter_folder, mask_token_id=token)
    findings = judge(target_folder, drafter_folder)
    assert levels(findings, "mask token in the tokenizer", "chat template") == [level, "ok"]


def test_a_plain_head_is_judged_without_a_mask(llama_folder: Path, tmp_path: Path) -> None:
    save_drafter(tmp_path, mask_token_id=None)
    findings = judge(llama_folder, tmp_path)
    assert not [what for what in findings if "mask" in what]


@pytest.mark.parametrize("element", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rows_are_read_alone(tmp_path: Path, element: Any) -> None:
    table = RNG.standard_normal((7, HIDDEN)).astype(element)
    (tmp_path / "table").write_bytes(b"head" + table.tobytes())
    names = {4: "F32", 2: "F16" if element is np.float16 else "BF16"}
    location = TensorLocation(path=tmp_path / "table", offset_bytes=4, length_bytes=table.nbytes)
    spec = TensorSpec(name="table", dtype=names[table.itemsize], shape=table.shape, location=location)
    np.testing.assert_array_equal(load_rows(spec, [6, 0]), table[[6, 0]].astype(np.float32))


def test_rows_of_a_quantized_table_are_read_alone(tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType, quants

    packed = quants.quantize(RNG.standard_normal((5, 64)).astype(np.float32), GGMLQuantizationType.Q4_1)
    (tmp_path / "table").write_bytes(packed.tobytes())
    location = TensorLocation(path=tmp_path / "table", offset_bytes=0, length_bytes=packed.nbytes)
    spec = TensorSpec(name="table", dtype="Q4_1", shape=(5, 64), location=location)
    whole = quants.dequantize(packed, GGMLQuantizationType.Q4_1)
    np.testing.assert_array_equal(load_rows(spec, [4, 1]), whole[[4, 1]])


def test_sampled_rows_reach_both_ends() -> None:
    assert spread_rows(1000, 3) == [0, 499, 999]
    assert spread_rows(2, 64) == [0, 1]
