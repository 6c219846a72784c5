"""Makes the catalog's smollm2-135m drafter: questions, the target's answers, training, evaluation.

Each step is a subcommand, so that the long ones can be run apart and again:
    invent --worker 0 --num-workers 2      user turns sampled from the target
    questions                              all question sets, mixed
    features --worker 0 --num-workers 2    the target's answers with hidden states
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import logging
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch

from peagle_trt.train.collect import CollectionPlan, collect_features, invent_questions, read_questions, write_questions
from peagle_trt.train.corpus import (
    Question,
    compose_exercises,
    compose_instructions,
    drop_copies,
    read_chats,
    read_library_functions,
    read_word_problems,
)
from peagle_trt.train.llama import read_llama
from peagle_trt.train.prompting import read_chat_format


def benchmark_texts(data: Path) -> Iterator[str]:
    """Every question of the three benchmarks, which training must not see."""
    for line in (data / "mt-bench/question.jsonl").read_text().splitlines():
        yield " ".join(json.loads(line)["turns"])
    for line in (data / "gsm8k/test.jsonl").read_text().splitlines():
        yield json.loads(line)["question"]
    with gzip.open(data / "humaneval/HumanEval.jsonl.gz", "rt") as stream:
        for line in stream:
            yield json.loads(line)["prompt"]


def mix_questions(data: Path, invented: list[Question], seed: int) -> list[Question]:
    """All sets in one random order, so that any beginning of it is a fair mixture."""
    chooser = random.Random(seed)
    library = list(read_library_functions(Path(sysconfig.get_paths()["stdlib"]), seed))
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


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("invent", "questions", "features"))
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder with gsm8k, chat-1k, mt-bench, humaneval")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000, help="invented questions a worker")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.step == "questions":
        invented = [q for path in sorted(arguments.work.glob("invented-*.jsonl")) for q in read_questions(path)]
        write_questions(arguments.work / "questions.jsonl", mix_questions(arguments.data, invented, seed=17))
        return
    target = read_llama(arguments.target, torch.bfloat16)
    chat = read_chat_format(arguments.target, target.shape.eos_token_id)
    if arguments.step == "invent":
        questions = invent_questions(target, chat, count=arguments.count, num_slots=64, seed=1000 + arguments.worker)
        write_questions(arguments.work / f"invented-{arguments.worker}.jsonl", questions)
        return
    plan = CollectionPlan(worker=arguments.worker, num_workers=arguments.num_workers)
    questions = read_questions(arguments.work / "questions.jsonl")
    collect_features(target, chat, questions, folder=arguments.work, plan=plan)


if __name__ == "__main__":
    main()
