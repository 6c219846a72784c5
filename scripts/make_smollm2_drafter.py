"""Makes the catalog's smollm2-135m drafter: questions, the target's answers, training, evaluation.

Each step is a subcommand, so that the long ones can be run apart and again:
    invent --worker 0 --num-workers 2      user turns sampled from the target; --round 2, 3, ... for more of them
    questions                              all question sets, mixed; a later --round draws again and adds what is new
    features --worker 0 --num-workers 2    the target's answers with hidden states, of at most --answer-tokens (224)
    lengthen --answer-tokens 512 --output STORE    the answers that their limit cut, up to a later one, in another store
    evaluation                             the target's answers to the benchmarks, in float32
    train --output FOLDER                  the head; exported and evaluated every ten minutes
    measure --output FOLDER                acceptance of a head on the answers of `evaluation`
    average --start OLD --newer NEW --share 0.5 --output FOLDER    the head between an earlier one and its successor
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import logging
import random
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from peagle_trt.cli.script import positive, positives, run_script
from peagle_trt.cli.train import USUAL_DECAY
from peagle_trt.decode.prompt_lookup import LookupExperience
from peagle_trt.errors import UsageError
from peagle_trt.spec.drafter import NO_MASK_TOKEN
from peagle_trt.train.acceptance import Acceptance, draft_everywhere, freeze_tables, walk
from peagle_trt.train.begin import new_trainer
from peagle_trt.train.checkpoint import read_head, write_head
from peagle_trt.train.collect import (
    CollectionPlan,
    collect_features,
    invent_questions,
    lengthen_answers,
    read_questions,
    write_questions,
)
from peagle_trt.train.corpus import (
    Question,
    compose_exercises,
    compose_instructions,
    drop_copies,
    read_chats,
    read_library_functions,
    read_word_problems,
)
from peagle_trt.train.features import TrainingSequence, read_all_sequences
from peagle_trt.train.optimizer import OptimizerSettings
from peagle_trt.train.prompting import read_chat_format
from peagle_trt.train.question_templates import OPENINGS
from peagle_trt.train.sampling import DropSettings
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.start import count_tokens
from peagle_trt.train.target import TorchTarget, read_torch_target
from peagle_trt.train.trainer import Trainer
from peagle_trt.train.vocabulary import choose_draft_vocabulary
from peagle_trt.train.warm_start import read_warm_start

logger = logging.getLogger("make_smollm2_drafter")

BENCHMARKS = ("mt-bench", "humaneval", "gsm8k")
SERVED_DRAFTS = 5
LENGTHENED_TOKENS = 512
HUMANEVAL_REQUEST = "Complete the following Python function. Only output the code, no explanations.\n"
# `<empty_output>`: a special token that no chat contains.
MASK_TOKEN_ID = 16


def benchmark_texts(data: Path) -> Iterator[str]:
    """Every question of the three benchmarks, which training must not see."""
    for line in (data / "mt-bench/question.jsonl").read_text().splitlines():
        yield " ".join(json.loads(line)["turns"])
    for line in (data / "gsm8k/test.jsonl").read_text().splitlines():
        yield json.loads(line)["question"]
    with gzip.open(data / "humaneval/HumanEval.jsonl.gz", "rt") as stream:
        for line in stream:
            yield json.loads(line)["prompt"]


def benchmark_questions(data: Path, name: str, count: int) -> list[Question]:
    """The first questions of a benchmark, first turns only."""
    if name == "mt-bench":
        lines = (data / "mt-bench/question.jsonl").read_text().splitlines()
        texts = [json.loads(line)["turns"][0] for line in lines]
    elif name == "gsm8k":
        texts = [json.loads(line)["question"] for line in (data / "gsm8k/test.jsonl").read_text().splitlines()]
    else:
        with gzip.open(data / "humaneval/HumanEval.jsonl.gz", "rt") as stream:
            texts = [HUMANEVAL_REQUEST + json.loads(line)["prompt"] for line in stream]
    return [Question(source=name, turns=(text,)) for text in texts[:count]]


def add_questions(path: Path, drawn: list[Question], data: Path, seed: int) -> int:
    """Append the questions that are new to a file of questions, where the places of the others stay.

    Returns:
        How many were new.
    """
    known = read_questions(path)
    texts = {question.turns for question in known}
    new = list({question.turns: question for question in drawn if question.turns not in texts}.values())
    fresh = list(drop_copies(new, benchmark_texts(data)))
    random.Random(seed).shuffle(fresh)
    write_questions(path, [*known, *fresh])
    return len(fresh)


def mix_questions(data: Path, invented: list[Question], seed: int, source_trees: list[Path]) -> list[Question]:
    """All sets in one random order, so that any beginning of it is a fair mixture."""
    chooser = random.Random(seed)
    library = list(read_library_functions(Path(sysconfig.get_paths()["stdlib"]), seed))
    for tree in source_trees:
        library.extend(read_library_functions(tree, seed, tree.name))
    problems = list(read_word_problems(data / "gsm8k/train.jsonl"))
    sets = (
        chooser.sample(problems, 1600),
        list(read_chats(data / "chat-1k/synthetic_conversations_1k.jsonl")),
        chooser.sample(library, 1000),
        list(compose_exercises(450, seed)),
        list(compose_instructions(1100, seed)),
        invented,
    )
    questions = list(drop_copies(itertools.chain(*sets), benchmark_texts(data)))
    chooser.shuffle(questions)
    return questions


def answer_benchmarks(folder: Path, data: Path, work: Path, *, num_questions: int, max_new_tokens: int) -> None:
    """Store what acceptance is measured on: the target's greedy answers in float32."""
    target = read_torch_target(folder, torch.float32)
    chat = read_chat_format(folder, target.config.eos_token_ids[0])
    plan = CollectionPlan(num_slots=num_questions, max_prompt_tokens=1024, max_new_tokens=max_new_tokens)
    for name in BENCHMARKS:
        collect_features(
            target, chat, benchmark_questions(data, name, num_questions), folder=work / f"evaluation/{name}", plan=plan
        )


def evaluate_head(
    head_folder: Path, target: TorchTarget, answers: dict[str, list[TrainingSequence]]
) -> dict[str, float]:
    """Acceptance length at K=5 of a written head, for each benchmark."""
    walked = walk_benchmarks(head_folder, target, answers, draft_tokens=(SERVED_DRAFTS,), prompt_lookup=False)
    return {f"acceptance_length_{name}": round(each.length, 4) for (name, _), each in walked.items()}


def walk_benchmarks(
    head_folder: Path,
    target: TorchTarget,
    answers: dict[str, list[TrainingSequence]],
    *,
    draft_tokens: tuple[int, ...],
    prompt_lookup: bool,
) -> dict[tuple[str, int], Acceptance]:
    """Walks over every benchmark's answers with every K."""
    head, draft_to_target = read_head(head_folder, torch.float32)
    if prompt_lookup and not head.config.is_parallel:
        raise UsageError(f"`{head_folder}` is an EAGLE-3 head, whose drafts behind a copy only a decode loop can tell")
    tables = freeze_tables(target.embeddings_VH, target.head_VH, draft_to_target, torch.float32)
    walked = {}
    # Requests of all benchmarks share what copies are worth, as they do in a server.
    lookups = {count: LookupExperience() if prompt_lookup else None for count in draft_tokens}
    for name, sequences in answers.items():
        totals = {count: Acceptance.none(count) for count in draft_tokens}
        for sequence in sequences:
            drafts_SK = draft_everywhere(head, tables, sequence, max(draft_tokens))
            for count in draft_tokens:
                totals[count] += walk(sequence, drafts_SK[:, :count], lookups[count])
        for count, each in totals.items():
            label = f"{name}" if count == SERVED_DRAFTS else f"{name}, K={count}"
            logger.info("%s: %.3f, %s of %d steps", label, each.length, each.accepted_by_position, each.num_steps)
            walked[name, count] = each
    return walked


def draft_vocabulary(
    arguments: argparse.Namespace, target: TorchTarget, sequences: list[TrainingSequence]
) -> NDArray[np.int64]:
    """The vocabulary of an earlier run in this folder, or the most frequent tokens of answers and questions.

    Answers count twenty times: the questions only say which rarer tokens later answers will need.
    """
    path = arguments.work / "draft_vocabulary.npy"
    if path.exists():
        return np.load(path)
    config = target.config
    chat = read_chat_format(arguments.target, config.eos_token_ids[0])
    counts = 20 * count_tokens(sequences, config.vocab_size)
    for question in read_questions(arguments.work / "questions.jsonl"):
        for turn in question.turns:
            counts += np.bincount(chat.encode(turn), minlength=config.vocab_size)
    # Single bytes have the lowest ids after the special tokens.
    always = {*config.eos_token_ids, *range(17, 273)}
    vocabulary = choose_draft_vocabulary(counts, coverage=0.0, always=always, size=arguments.draft_vocab_size)
    np.save(path, vocabulary)
    return vocabulary


def train(arguments: argparse.Namespace) -> None:
    """Train on the answers there are, and on more of them with every epoch; export and evaluate on the way."""
    target = read_torch_target(arguments.target, torch.float32)

    def read_more() -> list[TrainingSequence]:
        found = [s for s in read_all_sequences(arguments.work) if len(s.token_ids) - s.prompt_length >= 8]
        num_tokens = sum(len(s.token_ids) - s.prompt_length for s in found)
        logger.info("%d answers, %d answer tokens", len(found), num_tokens)
        return found

    sequences = read_more()
    settings = TrainingSettings(
        drop=DropSettings(num_depths=arguments.depths, retention=arguments.retention),
        optimizer=OptimizerSettings(
            matrix_rate=arguments.matrix_rate,
            other_rate=2e-3,
            warmup_steps=20,
            total_steps=arguments.steps,
            decay_steps=arguments.decay_steps,
        ),
        tokens_per_step=arguments.tokens_per_step,
        target_temperature=arguments.target_temperature,
        depth_decay=USUAL_DECAY[arguments.method] if arguments.depth_decay is None else arguments.depth_decay,
        refused_weight=arguments.refused_weight,
        save_seconds=arguments.save_seconds,
    )
    trainer, _ = new_trainer(
        target,
        sequences,
        settings,
        arguments.output / "run",
        draft_to_target=draft_vocabulary(arguments, target, sequences),
        mask_token_id=NO_MASK_TOKEN if arguments.method == "eagle3" else MASK_TOKEN_ID,
        compute_dtype=torch.bfloat16,
        read_more=read_more,
        num_layers=arguments.layers,
        intermediate_size=arguments.intermediate_size,
        warm=None if arguments.start is None else read_warm_start(arguments.start, arguments.target),
        report=logger.info,
    )
    if (arguments.output / "run/state.pt").exists():
        trainer.restore()

    def export(current: Trainer) -> dict[str, float]:
        vocabulary = current.tables.draft_to_target_D.numpy()
        write_head(arguments.output, current.head, vocabulary, target.config, current.averaged_state())
        answers = {name: read_all_sequences(arguments.work / f"evaluation/{name}") for name in BENCHMARKS}
        return evaluate_head(arguments.output, target, answers)

    trainer.run(export)


def average(arguments: argparse.Namespace) -> None:
    """Write the head between an earlier one and one that was trained from it, and evaluate it.

    Weights of one training lineage may be averaged: the mean of both is often better than either.

    Source: model soups (arXiv 2203.05482), weight interpolation of fine-tuned models (arXiv 2109.01903).
    """
    target = read_torch_target(arguments.target, torch.float32)
    (head, vocabulary), (earlier, earlier_vocabulary) = (
        read_head(folder, torch.float32) for folder in (arguments.newer, arguments.start)
    )
    old, new = earlier.folded_state(), head.folded_state()
    shapes = [{name: value.shape for name, value in state.items()} for state in (old, new)]
    if shapes[0] != shapes[1] or not np.array_equal(vocabulary, earlier_vocabulary):
        raise UsageError(f"`{arguments.newer}` and `{arguments.start}` differ in shape or draft vocabulary")
    mixed = {name: torch.lerp(old[name], new[name], arguments.share) for name in new}
    write_head(arguments.output, head, vocabulary, target.config, mixed)
    measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Walk over the stored answers with a written head, P-EAGLE's or EAGLE-3's."""
    target = read_torch_target(arguments.target, torch.float32)
    answers = {name: read_all_sequences(arguments.work / f"evaluation/{name}") for name in BENCHMARKS}
    walked = walk_benchmarks(
        arguments.output,
        target,
        answers,
        draft_tokens=arguments.draft_tokens,
        prompt_lookup=arguments.prompt_lookup,
    )
    for count in arguments.draft_tokens:
        mean = sum(walked[name, count].length for name in BENCHMARKS) / len(BENCHMARKS)
        logger.info("K=%d: mean acceptance length %.3f", count, mean)


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "step", choices=("invent", "questions", "features", "lengthen", "evaluation", "train", "measure", "average")
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder with gsm8k, chat-1k, mt-bench, humaneval")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--num-workers", type=positive, default=1)
    parser.add_argument("--count", type=positive, default=1000, help="invented questions a worker")
    parser.add_argument("--round", type=positive, default=1, help="from the second on, invented turns get first words")
    parser.add_argument(
        "--source-tree", type=Path, action="append", default=[], help="more Python packages to take functions from"
    )
    parser.add_argument("--output", type=Path, help="where the head goes; lengthen: the store for the longer answers")
    parser.add_argument(
        "--answer-tokens", type=positive, help="limit of a whole answer; features: 224, lengthen: 512 by default"
    )
    parser.add_argument("--method", choices=("p-eagle", "eagle3"), default="p-eagle", help="how the head drafts")
    parser.add_argument("--start", type=Path, help="an earlier head to begin with")
    parser.add_argument("--newer", type=Path, help="average: a head that was trained from --start")
    parser.add_argument("--share", type=float, default=0.5, help="average: weight of the newer head")
    parser.add_argument("--evaluation-questions", type=positive, default=20, help="of each set")
    parser.add_argument("--evaluation-tokens", type=positive, default=128, help="longest answer to them")
    parser.add_argument("--draft-tokens", type=positives, default=(SERVED_DRAFTS,), help="measure: K, a list")
    parser.add_argument("--prompt-lookup", action="store_true", help="measure: with copies from the text")
    parser.add_argument("--layers", type=positive)
    parser.add_argument("--intermediate-size", type=positive)
    parser.add_argument("--steps", type=positive, default=800)
    parser.add_argument("--tokens-per-step", type=positive, default=2000)
    parser.add_argument("--matrix-rate", type=float, default=0.02)
    parser.add_argument("--retention", type=float, default=0.5)
    parser.add_argument("--target-temperature", type=float, default=0.7)
    parser.add_argument("--depth-decay", type=float, help="weight of a depth relative to the one before")
    parser.add_argument("--refused-weight", type=float, default=1.0, help="weight of rows behind refused drafts")
    parser.add_argument("--depths", type=positive, default=6)
    parser.add_argument("--decay-steps", type=positive)
    parser.add_argument("--draft-vocab-size", type=positive, default=16384)
    parser.add_argument("--save-seconds", type=float, default=600.0)
    parser.add_argument("--threads", type=positive, default=1)
    arguments = parser.parse_args()
    needed = {
        "lengthen": ("output",),
        "train": ("output",),
        "measure": ("output",),
        "average": ("output", "start", "newer"),
    }
    for option in needed.get(arguments.step, ()):
        if getattr(arguments, option) is None:
            parser.error(f"{arguments.step} needs --{option}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.step == "questions":
        invented = [q for path in sorted(arguments.work.glob("invented-*.jsonl")) for q in read_questions(path)]
        path = arguments.work / "questions.jsonl"
        if path.exists():
            drawn = mix_questions(arguments.data, invented, 17 * arguments.round, arguments.source_tree)
            logger.info("%d new questions", add_questions(path, drawn, arguments.data, seed=17))
        else:
            write_questions(path, mix_questions(arguments.data, invented, 17, arguments.source_tree))
        return
    if arguments.step == "evaluation":
        answer_benchmarks(
            arguments.target,
            arguments.data,
            arguments.work,
            num_questions=arguments.evaluation_questions,
            max_new_tokens=arguments.evaluation_tokens,
        )
        return
    if arguments.step in ("train", "measure", "average"):
        {"train": train, "measure": measure, "average": average}[arguments.step](arguments)
        return
    target = read_torch_target(arguments.target, torch.bfloat16)
    chat = read_chat_format(arguments.target, target.config.eos_token_ids[0])
    if arguments.step == "invent":
        questions = invent_questions(
            target,
            chat,
            count=arguments.count,
            num_slots=64,
            seed=1000 * arguments.round + arguments.worker,
            openings=("",) if arguments.round == 1 else OPENINGS,
        )
        name = (
            f"invented-{arguments.worker}" if arguments.round == 1 else f"invented-{arguments.round}-{arguments.worker}"
        )
        write_questions(arguments.work / f"{name}.jsonl", questions)
        return
    plan = CollectionPlan(worker=arguments.worker, num_workers=arguments.num_workers)
    limit = arguments.answer_tokens or (LENGTHENED_TOKENS if arguments.step == "lengthen" else plan.max_new_tokens)
    plan = replace(plan, max_new_tokens=limit)
    if arguments.step == "lengthen":
        lengthen_answers(target, source=arguments.work, folder=arguments.output, plan=plan)
        return
    questions = read_questions(arguments.work / "questions.jsonl")
    collect_features(target, chat, questions, folder=arguments.work, plan=plan)


if __name__ == "__main__":
    sys.exit(run_script(main))
