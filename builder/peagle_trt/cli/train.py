"""`peagle-trt train`: questions in, a head out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from peagle_trt import catalog
from peagle_trt.cli.options import FILE, FOLDER, NumberList, config_option
from peagle_trt.cli.output import Output
from peagle_trt.errors import UsageError
from peagle_trt.spec.drafter import Method
from peagle_trt.train.fitting import MemoryRequest
from peagle_trt.train.objectives import OBJECTIVES
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.partition import METHODS
from peagle_trt.train.request import TrainingReport, TrainingRequest
from peagle_trt.train.run import train_head
from peagle_trt.train.sampling import DropSettings
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.states import FEATURES, Features

USUAL_RETENTION = 0.7
# Source: EAGLE-3's own training weighs depth d by 0.8^d; P-EAGLE's authors name no decay.
USUAL_DECAY: dict[Method, float] = {"p-eagle": 1.0, "eagle3": 0.8}


@click.command("train")
@click.option(
    "--target", metavar="NAME|PATH", required=True, help="A catalog name, a checkpoint's folder, or a GGUF file."
)
@click.option(
    "--data",
    "questions_path",
    type=FILE,
    required=True,
    help="Questions as JSON lines with `messages`, `turns`, `prompt` or `text`; the target answers them itself.",
)
@click.option("-o", "--output", "output_path", type=FOLDER, required=True, help="Folder of the head.")
@click.option(
    "--method",
    type=click.Choice(["p-eagle", "eagle3"]),
    default="p-eagle",
    show_default=True,
    help="p-eagle drafts K tokens in one pass; eagle3, its baseline, one token a pass (training-time test).",
)
@click.option(
    "--start",
    "start_path",
    type=FOLDER,
    help="Begin with the weights of this head, P-EAGLE's or EAGLE-3's, instead of the target's last layers.",
)
@click.option(
    "--layers", type=click.IntRange(min=1), help="Decoder layers of the head; 2, or those of --start, by default."
)
@click.option(
    "--intermediate-size",
    type=click.IntRange(1, 2**18),
    help="Width of the head's feed-forward blocks; the target's, or that of --start, by default. Narrower ones begin "
    "with the strongest neurons.",
)
@click.option(
    "--aux-layers",
    "auxiliary_layers",
    metavar="ID,ID,ID",
    type=NumberList(min=0),
    help="Target layers whose inputs the head reads; 2, n/2 and n-3 by default.",
)
@click.option("--depths", type=click.IntRange(2, 32), default=7, show_default=True, help="K in training; above yours.")
@click.option(
    "--retention",
    type=click.FloatRange(0.05, 1.0),
    help="Slots kept from one depth to the next; 0.7 by default.",
)
@click.option(
    "--depth-decay",
    type=click.FloatRange(0.0, 2.0, min_open=True),
    help="Weight of a depth's loss relative to the one before; 1 for p-eagle, 0.8 for eagle3 by default.",
)
@click.option(
    "--refused-weight",
    type=click.FloatRange(0.0, 1.0),
    default=1.0,
    show_default=True,
    help="Weight of a loss behind a draft that the target would refuse; below 1 the head learns what serving reads.",
)
@click.option("--draft-vocab-size", type=click.IntRange(min=16), help="Draft vocabulary; 98.5 % coverage by default.")
@click.option("--mask-token-id", type=click.IntRange(min=0), help="Token of mask slots; an unused one by default.")
@click.option("--steps", type=click.IntRange(min=1), default=1000, show_default=True, help="Optimizer steps.")
@click.option("--tokens-per-step", type=click.IntRange(min=64), default=3000, show_default=True, help="Text a step.")
@click.option(
    "--max-prompt-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Longest question; longer ones are left out.",
)
@click.option("--max-new-tokens", type=click.IntRange(min=8), default=224, show_default=True, help="Longest answer.")
@click.option(
    "--learning-rate",
    type=click.FloatRange(min=0.0, min_open=True),
    default=0.01,
    show_default=True,
    help="Peak rate of the matrices (Muon).",
)
@click.option(
    "--loss",
    "objective",
    type=click.Choice(list(OBJECTIVES)),
    default="kl",
    show_default=True,
    help="kl, ce: divergence, or the likeliest token alone; topk: KL over 32 tokens and the rest; tv, nla, lk: "
    "acceptance itself, its logarithm, a mixture of kl and tv.",
)
@click.option("--warmup", type=click.IntRange(min=1), help="Steps of the rise; a tenth of all, at most 30, by default.")
@click.option(
    "--clip",
    type=click.FloatRange(min=0.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Limit of the gradient's norm.",
)
@click.option(
    "--average",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.98,
    show_default=True,
    help="Decay of the running average of weights that is exported; 0 exports the last weights.",
)
@click.option(
    "--segments",
    type=click.IntRange(1, 1024),
    help="Cut the longest sequence into this many passes, and no pass is larger; losses and gradients stay the same.",
)
@click.option(
    "--memory-budget",
    metavar="GIB",
    type=click.FloatRange(min=0.0, min_open=True),
    help="Choose the number of segments by the memory that a step may take, beside target and head.",
)
@click.option(
    "--partition",
    type=click.Choice(list(METHODS)),
    default="cached",
    show_default=True,
    help="cached holds the context's keys and values; recomputed is the paper's Algorithm 1.",
)
@click.option(
    "--evaluate-every",
    type=click.IntRange(min=1),
    help="Steps between evaluations in the decode loop; one at the end.",
)
@click.option(
    "--patience", type=click.IntRange(min=1), help="Stop after this many evaluations without a better acceptance."
)
@click.option(
    "-k", "draft_tokens", type=click.IntRange(1, 32), default=5, show_default=True, help="Drafts a step in evaluations."
)
@click.option(
    "--features",
    type=click.Choice(list(FEATURES)),
    default="cached",
    show_default=True,
    help="cached stores hidden states with the answers; computed stores token ids alone, and the target reads the "
    "texts of every step once more.",
)
@click.option(
    "--compute-dtype",
    type=click.Choice(["float32", "bfloat16"]),
    help="Type of matrix products; bfloat16 on a GPU, float32 elsewhere by default. Weights stay float32.",
)
@click.option(
    "--device",
    metavar="auto|cpu|cuda[:N]",
    default="auto",
    show_default=True,
    help="Where target and head run; auto takes a GPU where torch sees one.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Of weights, order and mask slots.",
)
@click.option("--resume", "is_resumed", is_flag=True, help="Continue the training in the output folder.")
@config_option
@click.pass_obj
def command(
    output: Output,
    *,
    target: str,
    questions_path: Path,
    output_path: Path,
    method: Method,
    start_path: Path | None,
    layers: int | None,
    intermediate_size: int | None,
    auxiliary_layers: tuple[int, ...] | None,
    depths: int,
    retention: float | None,
    depth_decay: float | None,
    refused_weight: float,
    draft_vocab_size: int | None,
    mask_token_id: int | None,
    steps: int,
    tokens_per_step: int,
    max_prompt_tokens: int,
    max_new_tokens: int,
    learning_rate: float,
    objective: str,
    warmup: int | None,
    clip: float,
    average: float,
    segments: int | None,
    memory_budget: float | None,
    partition: str,
    evaluate_every: int | None,
    patience: int | None,
    draft_tokens: int,
    features: Features,
    compute_dtype: str | None,
    device: str,
    seed: int,
    is_resumed: bool,
) -> None:
    """Train a P-EAGLE head, or an EAGLE-3 head to compare it with, on the target's own greedy answers.

    The output folder takes the head with the best acceptance, and under `work` the answers, the last state, the
    metrics of every step and a picture of them. Several processes share the work when `torchrun` starts them.
    """
    if method == "eagle3" and retention is not None:
        raise UsageError("--retention thins out masked slots, and an EAGLE-3 head has none", hint="leave it out")
    is_known = not Path(target).exists() or catalog.has_entry(target)
    request = TrainingRequest(
        target_path=catalog.target_path(catalog.find_entry(target)) if is_known else Path(target),
        questions_path=questions_path,
        output_path=output_path,
        method=method,
        start_path=start_path,
        num_layers=layers,
        intermediate_size=intermediate_size,
        auxiliary_layers=auxiliary_layers,
        draft_vocab_size=draft_vocab_size,
        mask_token_id=mask_token_id,
        max_prompt_tokens=max_prompt_tokens,
        max_new_tokens=max_new_tokens,
        draft_tokens=draft_tokens,
        features=features,
        compute_dtype=compute_dtype,
        device=device,
        is_resumed=is_resumed,
        memory=MemoryRequest(
            method=partition,
            num_segments=segments,
            budget_bytes=None if memory_budget is None else int(memory_budget * 2**30),
        ),
        settings=TrainingSettings(
            drop=DropSettings(num_depths=depths, retention=USUAL_RETENTION if retention is None else retention),
            depth_decay=USUAL_DECAY[method] if depth_decay is None else depth_decay,
            refused_weight=refused_weight,
            optimizer=OptimizerSettings(
                matrix_rate=learning_rate, total_steps=steps, warmup_steps=warmup or max(1, min(30, steps // 10))
            ),
            tokens_per_step=tokens_per_step,
            objective=objective,
            max_norm=clip,
            average_decay=average,
            seed=seed,
            evaluation_steps=evaluate_every,
            patience=patience,
        ),
    )
    with output.bar("training", steps) as advance:
        report = train_head(
            request, report=output.progress, on_step=lambda step, _, loss: advance(step, f"loss {loss:.3f}")
        )
    output.result(_document(report, output_path), _text(report, output_path))


def _document(report: TrainingReport, path: Path) -> dict[str, object]:
    document = {key: value for key, value in asdict(report).items() if key != "held_out"}
    by_position = [count / max(1, report.held_out.num_steps) for count in report.held_out.accepted_by_position]
    return {
        "path": path,
        **document,
        "acceptance_length": report.held_out.length,
        "acceptance_by_position": by_position,
    }


def _text(report: TrainingReport, path: Path) -> str:
    return (
        f"{path}: acceptance length {report.held_out.length:.3f} on held-out answers, head of step "
        f"{report.best_step} of {report.num_steps}, trained on "
        f"{report.num_answers} answers ({report.num_answer_tokens} tokens), "
        f"draft vocabulary {report.draft_vocab_size}"
        + ("" if report.mask_token_id is None else f", mask token {report.mask_token_id}")
    )
