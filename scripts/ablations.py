"""P-EAGLE's design choices one by one: a head a variant, equal data, steps and seed, acceptance on held-out answers.

    scripts/ablations --target tiny --aux-layers 1,2,3 --data FOLDER --work FOLDER [--only shared,depth-encoded]

FOLDER of `--data` holds gsm8k/, humaneval/ and mt-bench/. The target answers questions of GSM8K's training set, once
for all variants; acceptance is a walk over its own answers to each benchmark. What is done is kept in `--work`: a
second call continues, an interrupted variant from its last state, and prints the table of all variants there are.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from peagle_trt import catalog
from peagle_trt.cli.script import positive, run_script
from peagle_trt.train.acceptance import freeze_tables, measure_acceptance
from peagle_trt.train.collect import CollectionPlan, collect_features
from peagle_trt.train.corpus import Question
from peagle_trt.train.features import AnswerText, read_all_texts
from peagle_trt.train.head import HeadRows, PeagleHead
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.prompting import ChatFormat, read_chat_format
from peagle_trt.train.run_state import STATE_NAME
from peagle_trt.train.sampling import DropSettings
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import auxiliary_scale, copy_last_layers, count_tokens, drafter_config
from peagle_trt.train.states import ComputedStates, complete_each
from peagle_trt.train.target import TorchTarget, read_torch_target
from peagle_trt.train.trainer import Trainer
from peagle_trt.train.vocabulary import choose_draft_vocabulary
from scripts.make_smollm2_drafter import benchmark_questions

if TYPE_CHECKING:
    from torch import Tensor

    from peagle_trt.spec import DrafterConfig

BENCHMARKS = ("gsm8k", "humaneval", "mt-bench")

logger = logging.getLogger("ablations")


class DepthEncodedHead(PeagleHead):
    """A head whose mask rows know their depth: a vector each, added to `mask_hidden`; no checkpoint can hold them."""

    def __init__(self, config: DrafterConfig, auxiliary_scale_A: Tensor) -> None:
        """Random weights, depths that all begin alike."""
        super().__init__(config, auxiliary_scale_A)
        self.depth_vectors = nn.ParameterList(torch.zeros(len(auxiliary_scale_A)) for _ in range(config.num_depths))

    def scaled_states(self, rows: HeadRows) -> Tensor:
        """What `fc` reads, with the depth's vector on mask rows; depths beyond those of training share the last."""
        depths = [np.concatenate([np.zeros(layout.num_context, np.int64), layout.depths]) for layout in rows.layouts]
        held = np.concatenate(depths).clip(max=len(self.depth_vectors) - 1)
        vectors_RA = torch.stack(list(self.depth_vectors))[torch.from_numpy(held).to(self.device)]
        # Depth 0 is the context's, which has the target's states instead.
        return super().scaled_states(rows) + vectors_RA * rows.is_mask_R[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One head; the defaults are the reference that all others differ from in one thing.

    Attributes:
        meaning: What differs.
        make_head: Its class.
        num_layers: Decoder layers.
        num_depths: K in training.
        retention: r.
        draft_vocab_size: Draft vocabulary; None is the target's own.
        objective: The loss.
        refused_weight: Weight of rows behind a draft that does not agree with the target.
        frozen: Parameters that stay as they begin, by the start of their names.
        is_copied: Whether it begins as the target's last layers.
    """

    meaning: str
    make_head: Callable[[DrafterConfig, Tensor], PeagleHead] = PeagleHead
    num_layers: int = 2
    num_depths: int = 7
    retention: float = 0.7
    draft_vocab_size: int | None = None
    objective: str = "kl"
    refused_weight: float = 1.0
    frozen: tuple[str, ...] = ()
    is_copied: bool = True


VARIANTS = {
    "shared": Variant(meaning="one `mask_hidden`, 2 layers, K_train 7, r 0.7, whole vocabulary, KL"),
    "depth-encoded": Variant(meaning="mask rows know their depth", make_head=DepthEncodedHead),
    "layers-1": Variant(meaning="1 layer", num_layers=1),
    "layers-4": Variant(meaning="4 layers", num_layers=4),
    "depths-5": Variant(meaning="K_train 5, as drafted", num_depths=5),
    "depths-10": Variant(meaning="K_train 10", num_depths=10),
    "retention-0.5": Variant(meaning="r 0.5", retention=0.5),
    "retention-1.0": Variant(meaning="r 1.0: every slot at every depth", retention=1.0),
    "vocabulary-512": Variant(meaning="the 512 likeliest tokens", draft_vocab_size=512),
    "loss-ce": Variant(meaning="cross entropy with the likeliest token", objective="ce"),
    "loss-tv": Variant(meaning="acceptance itself", objective="tv"),
    "loss-lk": Variant(meaning="a mixture of KL and acceptance", objective="lk"),
    "refused-0.1": Variant(meaning="rows behind a refused draft weigh 0.1", refused_weight=0.1),
    "frozen-mask": Variant(meaning="`mask_hidden` stays random", frozen=("mask_hidden",)),
    "frozen-fc": Variant(meaning="`fc` stays a copy of the highest state", frozen=("fc",)),
    "frozen-layers": Variant(meaning="layers stay the target's last two", frozen=("layers", "hidden_norm")),
    "random-start": Variant(meaning="begins at random, not as the target's last layers", is_copied=False),
}


def main() -> None:
    """Train what is missing, print the table."""
    options = parse_options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    is_known = catalog.has_entry(options.target)
    path = catalog.target_path(catalog.find_entry(options.target)) if is_known else Path(options.target)
    layers = tuple(map(int, options.aux_layers.split(","))) if options.aux_layers else None
    target = read_torch_target(path, torch.float32, layers)
    chat = read_chat_format(path, target.config.eos_token_ids[0])
    rows = (options.data / "gsm8k/train.jsonl").read_text(encoding="utf-8").splitlines()[: options.questions]
    questions = [Question(source="gsm8k-train", turns=(json.loads(row)["question"],)) for row in rows]
    answers = ask(target, chat, questions, options.work / "answers/train")
    held_out = {
        name: ask(
            target, chat, benchmark_questions(options.data, name, options.held_out), options.work / f"answers/{name}"
        )
        for name in BENCHMARKS
    }
    for name in options.only.split(",") if options.only else VARIANTS:
        path = options.work / f"{name}/result.json"
        facts = {key: value for key, value in vars(options).items() if key not in ("work", "only", "data")}
        if path.exists() and json.loads(path.read_text())["settings"] == facts:
            continue
        found = train_variant(name, target, chat, answers, held_out, options)
        path.write_text(json.dumps({**found, "settings": facts}, indent=2) + "\n")
        logger.info("%s: %s", name, found)
    write_table(options.work)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="a catalog name or a checkpoint's folder")
    parser.add_argument("--aux-layers", help="ID,ID,ID; 2, n/2 and n-3 by default")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--questions", type=positive, default=200, help="to train on")
    parser.add_argument("--held-out", type=positive, default=20, help="questions a benchmark")
    parser.add_argument("--steps", type=positive, default=100)
    parser.add_argument("--tokens-per-step", type=positive, default=800)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("-k", "--draft-tokens", type=positive, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="NAME,... of the variants: " + ", ".join(VARIANTS))
    options = parser.parse_args()
    unknown = set(options.only.split(",") if options.only else ()) - VARIANTS.keys()
    if unknown:
        parser.error(f"no variant `{sorted(unknown)[0]}`; there are {', '.join(VARIANTS)}")
    if options.aux_layers and not all(part.isdecimal() for part in options.aux_layers.split(",")):
        parser.error(f"`{options.aux_layers}` is no list of layers, such as 2,15,27")
    return options


def ask(target: TorchTarget, chat: ChatFormat, questions: Sequence[Question], folder: Path) -> list[AnswerText]:
    """The target's answers, kept without hidden states; those of fewer than 8 tokens are left out."""
    plan = CollectionPlan(features="computed", num_slots=32, max_prompt_tokens=192, max_new_tokens=64)
    collect_features(target, chat, questions, folder=folder, plan=plan)
    return [text for text in read_all_texts(folder) if len(text.token_ids) - text.prompt_length >= 8]


def train_variant(
    name: str,
    target: TorchTarget,
    chat: ChatFormat,
    answers: Sequence[AnswerText],
    held_out: dict[str, list[AnswerText]],
    options: argparse.Namespace,
) -> dict[str, object]:
    """Train one head, or continue; its loss and its acceptance on every benchmark."""
    variant, states = VARIANTS[name], ComputedStates(target)
    counts = count_tokens(answers, target.config.vocab_size)
    vocabulary = choose_draft_vocabulary(
        counts,
        coverage=1.0,
        always=target.config.eos_token_ids,
        size=variant.draft_vocab_size or target.config.vocab_size,
    )
    head = make_head(variant, target, len(vocabulary), chat.unused_token_id(counts), states, answers, options.seed)
    tables = freeze_tables(target.embeddings_VH, target.head_VH, vocabulary, torch.float32)
    settings = TrainingSettings(
        drop=replace(DropSettings(), num_depths=variant.num_depths, retention=variant.retention),
        optimizer=OptimizerSettings(
            matrix_rate=options.learning_rate, total_steps=options.steps, warmup_steps=max(1, options.steps // 10)
        ),
        tokens_per_step=options.tokens_per_step,
        objective=variant.objective,
        refused_weight=variant.refused_weight,
        # The last weights are measured: an average over a short run would hold on to its beginning.
        average_decay=0.0,
        seed=options.seed,
        save_seconds=60.0,
    )
    folder = options.work / name
    trainer = Trainer(head, tables, answers, settings, folder, states=states, facts=settings.facts())
    if (folder / STATE_NAME).exists():
        trainer.restore()
    began = time.process_time()
    losses = trainer.run()
    seconds = time.process_time() - began
    walked = {
        benchmark: measure_acceptance(head, tables, complete_each(states, texts), draft_tokens=options.draft_tokens)
        for benchmark, texts in held_out.items()
    }
    (folder / STATE_NAME).unlink()
    return {
        "meaning": variant.meaning,
        "last_loss": round(sum(losses[-10:]) / max(1, len(losses[-10:])), 4),
        "cpu_seconds": round(seconds, 1),
        "acceptance_length": {benchmark: round(found.length, 3) for benchmark, found in walked.items()},
        "accepted_by_position": {benchmark: found.accepted_by_position for benchmark, found in walked.items()},
        "num_steps": {benchmark: found.num_steps for benchmark, found in walked.items()},
    }


def make_head(
    variant: Variant,
    target: TorchTarget,
    vocabulary_size: int,
    mask_token_id: int,
    states: ComputedStates,
    answers: Sequence[AnswerText],
    seed: int,
) -> PeagleHead:
    """The variant's head at its first step; what heads share begins alike."""
    config = drafter_config(
        target.config,
        aux_layer_ids=target.auxiliary_layers,
        num_layers=variant.num_layers,
        draft_vocab_size=vocabulary_size,
        mask_token_id=mask_token_id,
        num_depths=variant.num_depths,
    )
    scale_A = auxiliary_scale(complete_each(states, answers))
    torch.manual_seed(seed)
    head = variant.make_head(config, scale_A)
    if variant.is_copied:
        copy_last_layers(head, target.weights, target.config)
    for parameter_name, parameter in head.named_parameters():
        parameter.requires_grad_(not parameter_name.startswith(variant.frozen))
    return head


def write_table(work: Path) -> None:
    """All variants that are there, as Markdown on the standard output and in table.md, and as JSON in table.json."""
    results = {
        name: json.loads(path.read_text()) for name in VARIANTS if (path := work / f"{name}/result.json").exists()
    }
    lines = [
        f"| variant | what differs | {' | '.join(BENCHMARKS)} | mean | last loss |",
        "|---|---|" + "---|" * (len(BENCHMARKS) + 2),
    ]
    for name, found in results.items():
        lengths = [found["acceptance_length"][benchmark] for benchmark in BENCHMARKS]
        cells = " | ".join(f"{length:.2f}" for length in [*lengths, sum(lengths) / len(lengths)])
        lines.append(f"| {name} | {found['meaning']} | {cells} | {found['last_loss']:.3f} |")
    table = "\n".join(lines) + "\n"
    (work / "table.md").write_text(table, encoding="utf-8")
    (work / "table.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(table, end="")


if __name__ == "__main__":
    sys.exit(run_script(main))
