"""What a precision costs, against torch on the models themselves and on answers that are known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from peagle_trt.bench import accuracy, prompt_sets
from peagle_trt.bench.accuracy import Material, Text, compare_texts, measure_accuracy, require_comparable
from peagle_trt.cli.main import run
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.decode.session import Generation, LoadedBuild, generate, open_build
from peagle_trt.engine.paired import PairedEngine
from peagle_trt.errors import RequestError, UsageError
from tests.support.checkpoints import save_byte_tokenizer
from tests.support.models import VOCABULARY, save_drafter, save_target

MATERIAL = Material(
    prompts=("One apple and", "print("),
    written=(("How many?", " It is 12."),),
    problems=(),
    max_tokens=12,
    problem_tokens=8,
    draft_tokens=3,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two targets of the same shape, a head, and builds: `first`, `second`, and `rounded` of the first in int8."""
    folder = tmp_path_factory.mktemp("accuracy")
    found: dict[str, Any] = {"folder": folder}
    for seed, name in enumerate(("first", "second")):
        found[name] = save_target(folder / name / "target", seed=seed, initializer_range=0.08).double()
        save_byte_tokenizer(folder / name / "target")
    save_drafter(folder / "head")
    for name, source, precision in (
        ("first", "first", "fp32"),
        ("second", "second", "fp32"),
        ("rounded", "first", "int8"),
    ):
        words = ["--target", folder / source / "target", "--drafter", folder / "head", "-o", folder / f"{name}.build"]
        limits = ["--max-batch-size", "2", "--max-sequence-length", "256", "--precision", precision]
        assert run(["-q", "build", *map(str, words), *limits]) == 0
    return found


@pytest.fixture(scope="module")
def builds(models: dict[str, Any]) -> Iterator[dict[str, LoadedBuild]]:
    names = ("first", "second", "rounded")
    opened = {name: open_build(models["folder"] / f"{name}.build", num_threads=1) for name in names}
    yield opened
    for build in opened.values():
        build.engine.close()


def log_probabilities(model: Any, text: Text) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([[*text.prompt_ids, *text.token_ids]])).logits[0]
    return torch.log_softmax(logits[len(text.prompt_ids) - 1 : -1], -1)


def test_figures_of_texts_are_those_of_torch(models: dict[str, Any], builds: dict[str, LoadedBuild]) -> None:
    ids = np.random.default_rng(5).integers(0, VOCABULARY, 200).tolist()
    texts = [Text(prompt_ids=tuple(ids[:7]), token_ids=tuple(ids[7:])), Text(prompt_ids=(3,), token_ids=(9,))]
    found = compare_texts(builds["second"].engine, builds["first"].engine, texts)
    expected, other = (
        torch.cat([log_probabilities(models[name], text) for text in texts]) for name in ("first", "second")
    )
    wanted = torch.tensor([*texts[0].token_ids, *texts[1].token_ids])
    assert (found.num_tokens, found.num_texts) == (194, 2)
    divergence = torch.nn.functional.kl_div(other, expected, reduction="batchmean", log_target=True)
    assert found.kl_nats == pytest.approx(divergence.item(), rel=1e-4)
    assert found.top1_agreement == pytest.approx((expected.argmax(-1) == other.argmax(-1)).double().mean().item())
    for perplexity, logs in ((found.perplexity, other), (found.reference_perplexity, expected)):
        assert perplexity == pytest.approx(torch.nn.functional.nll_loss(logs, wanted).exp().item(), rel=1e-4)


def test_a_build_loses_nothing_to_itself(builds: dict[str, LoadedBuild]) -> None:
    found = measure_accuracy(builds["first"], builds["first"], MATERIAL)
    for figures in found.texts.values():
        assert (figures.kl_nats, figures.top1_agreement) == (0.0, 1.0)
        assert figures.perplexity == figures.reference_perplexity
    accepted = found.acceptance
    assert accepted.reference == accepted.target_only == accepted.drafter_only == accepted.both
    assert (found.same_answers, found.score) == (1.0, None)


def test_integers_move_the_target_a_little(builds: dict[str, LoadedBuild]) -> None:
    figures = measure_accuracy(builds["rounded"], builds["first"], MATERIAL).texts["answers of the reference"]
    assert 0 < figures.kl_nats < 0.1
    assert figures.num_texts == 2


def test_a_pair_answers_as_its_target_and_drafts_as_its_drafter(builds: dict[str, LoadedBuild]) -> None:
    target, drafter = builds["first"], builds["rounded"]
    pair = replace(target, engine=PairedEngine(target.engine, drafter.engine))
    request = replace(target.request("One apple", max_tokens=20), draft_tokens=3)
    (alone,), (paired,) = generate(target, [request]), generate(pair, [request])
    assert paired.token_ids == alone.token_ids
    assert pair.engine.drafter == drafter.manifest.drafter


def test_right_answers_and_equal_ones_are_counted(
    builds: dict[str, LoadedBuild], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"first": ["it is 4", "no idea", "7, or 8", "none"], "rounded": ["= 4.", "3", "it is 8", "nothing"]}

    def scripted(loaded: LoadedBuild, requests: Sequence[GenerationRequest]) -> list[Generation]:
        answers = generate(loaded, requests)
        return [replace(each, text=text) for each, text in zip(answers, texts[loaded.path.stem], strict=True)]

    material = replace(MATERIAL, problems=(("a", "4"), ("b", "3"), ("c", "9"), ("d", "1")))
    monkeypatch.setattr(accuracy, "generate", scripted)
    score = accuracy._score(builds["rounded"], builds["first"], material, lambda line: None)
    assert (score.num_problems, score.num_right, score.reference_num_right, score.num_same) == (4, 2, 1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"rms_norm_eps": 0.25}}, r"the target is not the same \(rms_norm_eps\)"),
        ({"drafter": {"rms_norm_eps": 0.25}}, "the drafter is not the same"),
        ({"shapes": {"max_draft_tokens": 9}}, "the largest K is not the same"),
        ({"shapes": {"max_batch_size": 1}}, "the limits are not the same"),
        ({"tokenizer": {"tokenizer": "tokenizer/other.json"}}, "the tokenizer is not the same"),
    ],
)
def test_builds_that_differ_in_more_are_refused(
    builds: dict[str, LoadedBuild], changes: dict[str, dict[str, Any]], message: str
) -> None:
    first = builds["first"]
    parts = {name: msgspec.structs.replace(getattr(first.manifest, name), **each) for name, each in changes.items()}
    other = replace(first, manifest=msgspec.structs.replace(first.manifest, **parts))
    with pytest.raises(UsageError, match=message):
        require_comparable(builds["rounded"], other, 3)


def test_a_build_without_a_drafter_is_refused(builds: dict[str, LoadedBuild]) -> None:
    first = builds["first"]
    graphs = {role: path for role, path in first.manifest.graphs.items() if role.startswith("target")}
    bare = replace(first, manifest=msgspec.structs.replace(first.manifest, graphs=graphs))
    with pytest.raises(UsageError, match="holds no drafter"):
        require_comparable(first, bare, 3)


def test_more_drafts_than_the_builds_take_are_refused(builds: dict[str, LoadedBuild]) -> None:
    with pytest.raises(UsageError, match="K is 17; these builds take at most 16"):
        require_comparable(builds["first"], builds["rounded"], 17)


def test_engines_of_other_limits_make_no_pair(builds: dict[str, LoadedBuild]) -> None:
    class Longer:
        target = builds["first"].engine.target
        shapes = msgspec.structs.replace(builds["first"].engine.shapes, cache_capacity=999)

    with pytest.raises(UsageError, match="other limits"):
        PairedEngine(builds["first"].engine, Longer())  # type: ignore[arg-type]


def test_a_problem_that_does_not_fit_is_refused_before_anything_is_answered(builds: dict[str, LoadedBuild]) -> None:
    material = replace(MATERIAL, problems=(("x" * 300, "4"),))
    lines: list[str] = []
    with pytest.raises(RequestError, match="at most 255 fit"):
        measure_accuracy(builds["rounded"], builds["first"], material, lines.append)
    assert lines == []


def test_no_text_is_no_comparison(builds: dict[str, LoadedBuild]) -> None:
    with pytest.raises(UsageError, match="there is no text to compare over"):
        compare_texts(builds["first"].engine, builds["rounded"].engine, [])


def test_the_command_tells_all(models: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    folder: Path = models["folder"]
    words = ["bench", str(folder / "rounded.build"), "--against", str(folder / "first.build"), "--prompts"]
    limits = ["gsm8k", "--num-prompts", "1", "--max-tokens", "4", "--problems", "0", "-k", "2", "--threads", "1"]
    assert run(["-q", "--json", *words, *limits]) == 2
    assert "at most 255 fit" in json.loads(capsys.readouterr().out)["error"]["message"]
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "One"}\n')
    assert run(["-q", "--json", *words, str(prompts), *limits[1:]]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["precision"], document["reference_precision"]) == ("int8", "fp32")
    assert set(document["acceptance"]) == {"reference", "target_only", "drafter_only", "both"}
    assert run(["-q", *words, str(prompts), *limits[1:]]) == 0
    assert "KL, nats a token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "http://127.0.0.1:1"], "--against compares a BUILD with another, not a served one"),
        (["-k", "2,3"], "--against measures at one K"),
        (["-k", "auto"], "--against measures at one K"),
        (["--prompts", "nowhere.jsonl"], "cannot read the prompts `nowhere.jsonl`"),
    ],
)
def test_options_that_make_no_comparison_are_refused(
    models: dict[str, Any], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder: Path = models["folder"]
    build = [] if "--url" in words else [str(folder / "rounded.build")]
    code = run(["-q", "--json", "bench", *build, "--against", str(folder / "first.build"), *words])
    assert code == 2
    assert message in json.loads(capsys.readouterr().out)["error"]["message"]


def test_a_missing_text_set_is_named(
    models: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prompt_sets, "FOLDER", tmp_path)
    prompts = tmp_path / "own.jsonl"
    prompts.write_text('{"prompt": "One"}\n')
    folder: Path = models["folder"]
    words = [
        "bench",
        str(folder / "rounded.build"),
        "--against",
        str(folder / "first.build"),
        "--prompts",
        str(prompts),
    ]
    assert run(["-q", "--json", *words]) == 2
    assert "the text set `gsm8k` cannot be read" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_problems_without_a_reference_are_refused(models: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-q", "--json", "bench", str(models["folder"] / "first.build"), "--problems", "3"]) == 2
    assert "--problems belongs to --against" in json.loads(capsys.readouterr().out)["error"]["message"]
