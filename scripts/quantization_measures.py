"""How `measure_quantization` measures: logits and answers in torch, acceptance length through builds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from peagle_trt.bench.clients import InProcessClient
from peagle_trt.bench.known_answers import last_number
from peagle_trt.bench.measure import Method
from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.decode.session import open_build
from peagle_trt.files import remove_folder
from peagle_trt.pipeline import build
from peagle_trt.quant.calibration import Scales
from peagle_trt.quant.calibration.simulated import simulated_activations, simulated_cache
from peagle_trt.spec import BuildSpec
from scripts.quantization_recipes import MeasuredRecipe

BATCH = 50
_GROUPED = "grouped_sdpa"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsFigures:
    """Against the unquantized model, over the tokens of answers.

    Attributes:
        divergence: Mean Kullback-Leibler divergence of its next tokens from the unquantized model's, in nats.
        top1_agreement: Share of tokens whose most likely successor is the same.
        perplexity: Of the quantized model.
        num_tokens: Tokens.
    """

    divergence: float
    top1_agreement: float
    perplexity: float
    num_tokens: int


def load_plain(folder: Path) -> Any:
    """A model in float32."""
    transformers.utils.logging.disable_progress_bar()
    transformers.AttentionInterface.register(_GROUPED, _grouped_attention)
    transformers.AttentionMaskInterface.register(_GROUPED, sdpa_mask)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=_GROUPED
    ).eval()


def _grouped_attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any, **settings: Any
) -> tuple[torch.Tensor, None]:
    """Single rows as rows of their group: transformers repeats the whole cache for every query head instead.

    Shapes: query [B, heads, S, head_dim]; key, value [B, kv_heads, T, head_dim]; the result [B, S, heads, head_dim].
    """
    if query.shape[2] != 1:
        attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
        return attended, None
    batch, heads, _, width = query.shape
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], width)
    attended = functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=settings.get("scaling")
    )
    return attended.reshape(batch, 1, heads, width), None


@contextlib.contextmanager
def simulated(model: Any, recipe: MeasuredRecipe, scales: Scales | None, kept: Sequence[str]) -> Iterator[None]:
    """Round what the recipe rounds, weights apart."""
    with contextlib.ExitStack() as stack:
        if recipe.activations:
            assert scales is not None

            def is_quantized(module: str) -> bool:
                return module.rpartition(".")[2] in recipe.parts and module not in kept

            stack.enter_context(simulated_activations(model, scales.values, recipe.activations, is_quantized))
        if recipe.cache:
            assert scales is not None
            stack.enter_context(simulated_cache(model, scales.values, recipe.cache))
        yield


def encode_chats(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int]]:
    """Question and answer in the chat template, with the place where the answer begins."""
    encoded = []
    for question, answer in pairs:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        start = tokenizer(asked, add_special_tokens=False)["input_ids"]
        encoded.append((start + tokenizer(answer, add_special_tokens=False)["input_ids"], len(start)))
    return encoded


def compare_logits(plain: Any, quantized: Any, texts: Sequence[tuple[list[int], int]], around: Any) -> LogitsFigures:
    """Both models over the same texts; `around` makes the context that the quantized one runs in."""
    divergence = agreement = loss = 0.0
    count = 0
    with torch.inference_mode():
        for token_ids, start in texts:
            ids = torch.tensor([token_ids])
            rows = slice(start - 1, len(token_ids) - 1)
            expected = functional.log_softmax(plain(ids, use_cache=False).logits[0, rows], dim=-1)
            with around():
                found = functional.log_softmax(quantized(ids, use_cache=False).logits[0, rows], dim=-1)
            divergence += functional.kl_div(found, expected, reduction="sum", log_target=True).item()
            agreement += (found.argmax(-1) == expected.argmax(-1)).sum().item()
            loss += functional.nll_loss(found, ids[0, start:], reduction="sum").item()
            count += len(token_ids) - start
    return LogitsFigures(
        divergence=divergence / count,
        top1_agreement=agreement / count,
        perplexity=torch.tensor(loss / count).exp().item(),
        num_tokens=count,
    )


def answer_problems(model: Any, tokenizer: Any, problems: Sequence[tuple[str, str]], max_tokens: int) -> list[str]:
    """The number that each problem's greedy answer ends with."""
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    settings = transformers.GenerationConfig(
        max_new_tokens=max_tokens,
        do_sample=False,
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    numbers: list[str] = []
    for first in range(0, len(problems), BATCH):
        batch = problems[first : first + BATCH]
        asked = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
            )
            for question, _ in batch
        ]
        inputs = tokenizer(asked, add_special_tokens=False, padding=True, return_tensors="pt")
        with torch.inference_mode():
            answers = model.generate(**inputs, generation_config=settings)[:, inputs["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
        numbers += [last_number(text) for text in texts]
    return numbers


def acceptance_lengths(
    target: Path, drafter: Path, work: Path, *, prompt_sets: Sequence[str], num_prompts: int, max_tokens: int, k: int
) -> dict[str, float]:
    """Tokens a verify step yields, by set of prompts, through a build that is removed afterwards."""
    output = work / "build"
    spec = BuildSpec(
        name="measured",
        target_path=target,
        drafter_path=drafter,
        tokenizer_path=target,
        output_path=output,
        draft_tokens=k,
        max_sequence_length=1024,
    )
    build(spec, until="assemble")
    loaded = open_build(output, num_threads=1)
    client = InProcessClient(loaded, is_chat=True, ends=True)
    method = Method(name="p-eagle", draft_tokens=k, concurrency=8)
    lengths = {}
    for name in prompt_sets:
        answers = client.answer(read_prompts(name, num_prompts).prompts, method, max_tokens)
        steps = sum(answer.num_verify_steps for answer in answers)
        lengths[name] = 1.0 + sum(sum(answer.accepted_by_position) for answer in answers) / steps
    loaded.engine.close()
    remove_folder(output)
    return lengths
