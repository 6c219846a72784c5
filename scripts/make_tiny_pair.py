"""Makes the catalog's `tiny` pair: a 2 M-parameter Llama trained on GSM8K and its 2-layer P-EAGLE drafter.

    python scripts/make_tiny_pair.py --gsm8k FOLDER --work FOLDER [--step target|drafter|all]

FOLDER holds GSM8K's train.jsonl and test.jsonl (MIT licence). Takes 16 CPU-minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from peagle_trt.cli.script import positive, run_script
from peagle_trt.train.acceptance import freeze_tables, measure_acceptance
from peagle_trt.train.begin import new_trainer
from peagle_trt.train.checkpoint import read_head, write_head
from peagle_trt.train.collect import CollectionPlan, collect_features
from peagle_trt.train.corpus import Question
from peagle_trt.train.features import TrainingSequence, read_all_sequences
from peagle_trt.train.optimizer import OptimizerSettings, SplitOptimizer
from peagle_trt.train.prompting import read_chat_format
from peagle_trt.train.sampling import DropSettings
from peagle_trt.train.settings import TrainingSettings
from peagle_trt.train.target import TorchTarget, read_torch_target
from peagle_trt.train.trainer import Trainer

logger = logging.getLogger("make_tiny_pair")

CATALOG = Path(__file__).parents[1] / "builder/peagle_trt/catalog/tiny"
PAD, END, MASK = 0, 1, 2
SPECIAL_TOKENS = ["<pad>", "<|endoftext|>", "<mask>"]
VOCABULARY = 2048
ROW_TOKENS, ROWS = 192, 16
AUXILIARY_LAYERS = (1, 2, 3)
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'Question: ' + message['content'] + '\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Answer: ' + message['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"
)


def read_texts(path: Path) -> list[str]:
    """Question and worked answer of every problem, as the target sees them."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [f"Question: {row['question']}\nAnswer: {row['answer']}\n" for row in rows]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE with single digits and separate pad, end and mask tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_target(texts: list[str], tokenizer: Tokenizer, *, seconds: float, seed: int) -> torch.nn.Module:
    """Train the target until the time is spent, whatever the machine's speed.

    Args:
        texts: Documents.
        tokenizer: The tiny tokenizer.
        seconds: Process CPU seconds.
        seed: Of weights and order.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    model = LlamaForCausalLM(config)
    documents = [[*encoding.ids, END] for encoding in tokenizer.encode_batch(texts)]
    stream = torch.tensor([token for document in documents for token in document])
    starts = torch.tensor([len(document) for document in documents]).cumsum(0)
    starts = starts[starts < len(stream) - ROW_TOKENS]
    total_steps = 2 * len(stream) // (ROW_TOKENS * ROWS)
    settings = OptimizerSettings(matrix_rate=0.02, other_rate=4e-3, warmup_steps=20, total_steps=1000)
    optimizer = SplitOptimizer(
        model.named_parameters(), settings, compute_dtype=torch.float32, plain=("model.embed_tokens.weight",)
    )
    began = time.process_time()
    for step in range(total_steps):
        share = (time.process_time() - began) / seconds
        if share >= 1.0:
            break
        rows = starts[torch.randint(len(starts), (ROWS,))]
        batch = stream[rows[:, None] + torch.arange(ROW_TOKENS)]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        # The curve follows the clock, so that it always ends at its foot.
        optimizer.step(max(min(step, 20), int(share * settings.total_steps)), max_norm=1.0)
        if step % 50 == 0:
            logger.info("target step %d, %.0f%% of the time, loss %.3f", step, 100 * share, float(loss.detach()))
    return model


def validation_loss(model: torch.nn.Module, texts: list[str], tokenizer: Tokenizer) -> float:
    """Mean loss a token over held-out documents."""
    documents = [[*encoding.ids, END] for encoding in tokenizer.encode_batch(texts[:300])]
    stream = torch.tensor([token for document in documents for token in document])
    rows = stream[: len(stream) // 256 * 256].view(-1, 256)
    with torch.inference_mode():
        return float(model(input_ids=rows, labels=rows).loss)


def save_target(model: torch.nn.Module, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the target in bf16, its weights rounded once so that every reader sees the same numbers."""
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def answer_questions(
    target: TorchTarget, questions: list[Question], folder: Path, model: Path
) -> list[TrainingSequence]:
    """The target's greedy answers with hidden states; kept in `folder`, so that a second run continues."""
    chat = read_chat_format(model, END)
    plan = CollectionPlan(num_slots=64, max_prompt_tokens=192, max_new_tokens=128)
    collect_features(target, chat, questions, folder=folder, plan=plan)
    return read_all_sequences(folder)


def train_drafter(model: Path, gsm8k: Path, work: Path, output: Path, *, num_questions: int, steps: int) -> None:
    """Train the 2-layer head on the target's own answers and log its acceptance length on held-out questions."""
    target = read_torch_target(model, torch.float32, AUXILIARY_LAYERS)
    rows = [json.loads(line)["question"] for line in (gsm8k / "train.jsonl").read_text().splitlines()]
    # Every third question is cut short, so that the drafter also learns to follow questions as they are written.
    questions = [
        Question(source="gsm8k-train", turns=(f"Question: {row[:90]}",), is_raw=True)
        if place % 3 == 0
        else Question(source="gsm8k-train", turns=(row,))
        for place, row in enumerate(rows[:num_questions])
    ]
    held_out = [json.loads(line)["question"] for line in (gsm8k / "test.jsonl").read_text().splitlines()[:64]]
    sequences = answer_questions(target, questions, work / "train", model)
    unseen = answer_questions(
        target, [Question(source="gsm8k-test", turns=(row,)) for row in held_out], work / "test", model
    )
    logger.info("%d answers, %d tokens", len(sequences), sum(len(s.token_ids) - s.prompt_length for s in sequences))
    settings = TrainingSettings(
        drop=DropSettings(num_depths=7, retention=0.75),
        optimizer=OptimizerSettings(matrix_rate=0.02, other_rate=4e-3, warmup_steps=30, total_steps=steps),
        tokens_per_step=1500,
        save_seconds=150.0,
    )
    identity = np.arange(VOCABULARY)
    trainer, _ = new_trainer(
        target,
        sequences,
        settings,
        work / "run",
        draft_to_target=identity,
        mask_token_id=MASK,
        compute_dtype=torch.bfloat16,
    )

    def export(current: Trainer) -> dict[str, float]:
        write_head(output, current.head, identity, target.config, current.averaged_state())
        written, draft_to_target = read_head(output, torch.float32)
        exact = freeze_tables(target.embeddings_VH, target.head_VH, draft_to_target, torch.float32)
        walked = measure_acceptance(written, exact, unseen, draft_tokens=5)
        logger.info("acceptance length %.3f, by position %s", walked.length, walked.accepted_by_position)
        return {"acceptance_length": walked.length}

    trainer.run(export)


def main() -> None:
    """Make the pair, or one half of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=CATALOG)
    parser.add_argument("--step", choices=("target", "drafter", "all"), default="all")
    parser.add_argument("--work", type=Path, required=True, help="folder for features and training states")
    parser.add_argument("--questions", type=positive, default=2400)
    parser.add_argument("--steps", type=positive, default=450)
    parser.add_argument("--target-seconds", type=float, default=420.0, help="CPU seconds")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if arguments.step != "drafter":
        texts = read_texts(arguments.gsm8k / "train.jsonl")
        tokenizer = train_tokenizer(texts)
        model = train_target(texts, tokenizer, seconds=arguments.target_seconds, seed=0)
        loss = validation_loss(model, read_texts(arguments.gsm8k / "test.jsonl"), tokenizer)
        logger.info("held-out loss %.3f", loss)
        save_target(model, tokenizer, arguments.output / "target")
    if arguments.step != "target":
        train_drafter(
            arguments.output / "target",
            arguments.gsm8k,
            arguments.work,
            arguments.output / "drafter",
            num_questions=arguments.questions,
            steps=arguments.steps,
        )


if __name__ == "__main__":
    sys.exit(run_script(main))
