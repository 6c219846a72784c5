"""Answers the same prompts with vLLM and with a build of ours, and compares tokens and accepted drafts by position."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.catalog import drafter_path, find_entry, has_entry, target_path
from peagle_trt.cli.main import run
from peagle_trt.cli.script import positive, positives, run_script
from peagle_trt.decode.loop import DecodeLoop
from peagle_trt.decode.request import GenerationRequest
from peagle_trt.decode.session import LoadedBuild, open_build
from peagle_trt.errors import UsageError
from peagle_trt.pipeline import build
from peagle_trt.spec import BuildSpec


def main() -> int:
    """Compare for every K; ends with 5 where something differs."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="peagle-trt-vllm-") as name:
        folder = Path(name)
        target, drafter = _checkpoints(arguments)
        spec = BuildSpec(
            name="compared",
            target_path=target,
            drafter_path=drafter,
            tokenizer_path=target,
            output_path=folder / "build",
            max_sequence_length=arguments.max_length,
        )
        build(spec, report=_say)
        head = _convert(drafter, target, folder / "head")
        loaded = open_build(folder / "build", num_threads=arguments.threads)
        prompts = _prompt_ids(loaded, arguments)
        rows = [_compare(loaded, k, prompts, target, head, folder, arguments) for k in arguments.draft_tokens]
    print(_table(rows))
    return 0 if all(row["equal"] for row in rows) else 5


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm-python", type=Path, required=True, help="python of the environment that holds vLLM")
    parser.add_argument("--target", default="tiny", help="catalog name or Hugging Face folder")
    parser.add_argument("--drafter", type=Path, help="a P-EAGLE or EAGLE-3 head; by default the shipped one")
    parser.add_argument("--prompts", default="gsm8k")
    parser.add_argument("--num-prompts", type=positive, default=6)
    parser.add_argument("--max-tokens", type=positive, default=64)
    parser.add_argument("--max-length", type=positive, default=512)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("-k", "--draft-tokens", type=positives, default=(1, 3, 5, 7))
    return parser.parse_args()


def _checkpoints(arguments: argparse.Namespace) -> tuple[Path, Path]:
    if not has_entry(arguments.target):
        if arguments.drafter is None:
            raise UsageError("a target of your own needs a drafter", hint="give --drafter DIR")
        return Path(arguments.target), arguments.drafter
    entry = find_entry(arguments.target)
    return target_path(entry), arguments.drafter or drafter_path(entry)


def _convert(drafter: Path, target: Path, output: Path) -> Path:
    words = ["convert", str(drafter), "--to", "vllm", "--target", str(target), "-o", str(output)]
    if (code := run(words)) != 0:
        sys.exit(code)
    return output


def _prompt_ids(loaded: LoadedBuild, arguments: argparse.Namespace) -> list[list[int]]:
    longest = arguments.max_length - arguments.max_tokens - 1
    ids = [
        list(loaded.chat_request(prompt, max_tokens=1).prompt_ids)
        if loaded.tokenizer.has_chat_template
        else list(loaded.request(prompt, max_tokens=1).prompt_ids)
        for prompt in read_prompts(arguments.prompts, arguments.num_prompts).prompts
    ]
    return [prompt for prompt in ids if len(prompt) <= longest]


def _compare(
    loaded: LoadedBuild,
    draft_tokens: int,
    prompts: list[list[int]],
    target: Path,
    head: Path,
    folder: Path,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    theirs = _ask_vllm(loaded, draft_tokens, prompts, target, head, folder / "answers.json", arguments)
    answers = [_answer(loaded, draft_tokens, ids, arguments.max_tokens) for ids in prompts]
    steps = [accepted for answer in answers for accepted in answer.accepted]
    ours = {
        "num_drafts": len(steps),
        "accepted_by_position": [sum(accepted > slot for accepted in steps) for slot in range(draft_tokens)],
    }
    same_tokens = [answer.token_ids for answer in answers] == theirs["tokens"]
    counts = {key: theirs[key] for key in ours}
    _say(f"K={draft_tokens}: vLLM {counts}, ours {ours}, tokens {'equal' if same_tokens else 'DIFFER'}")
    return {
        "draft_tokens": draft_tokens,
        "version": theirs["version"],
        "tokens": sum(len(ids) for ids in theirs["tokens"]),
        "same_tokens": same_tokens,
        "vllm": counts,
        "ours": ours,
        "equal": same_tokens and counts == ours,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """Tokens of an answer, and drafts accepted in every verify step that it took."""

    token_ids: list[int]
    accepted: list[int]


def _answer(loaded: LoadedBuild, draft_tokens: int, prompt_ids: list[int], max_tokens: int) -> _Answer:
    """Decode past the limit, for vLLM counts all drafts of the step that reaches it."""
    loop = DecodeLoop(loaded.engine, None)
    request = GenerationRequest(
        request_id="0",
        prompt_ids=tuple(prompt_ids),
        max_tokens=max_tokens + draft_tokens + 1,
        draft_tokens=draft_tokens,
    )
    loop.submit(request)
    token_ids: list[int] = []
    accepted = []
    while loop.has_work:
        for chunk in loop.step():
            # The first token comes from the prompt's pass, which verifies nothing.
            if 0 < len(token_ids) < max_tokens:
                accepted.append(len(chunk.token_ids) - 1)
            token_ids += chunk.token_ids
    return _Answer(token_ids=token_ids[:max_tokens], accepted=accepted)


def _ask_vllm(
    loaded: LoadedBuild,
    draft_tokens: int,
    prompts: list[list[int]],
    target: Path,
    head: Path,
    answer_path: Path,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    job = {
        "target": str(target),
        "drafter": str(head),
        "draft_tokens": draft_tokens,
        "parallel_drafting": loaded.manifest.drafter.is_parallel,
        "prompts": prompts,
        "max_tokens": arguments.max_tokens,
        "max_length": arguments.max_length,
    }
    worker = Path(__file__).with_name("vllm_worker.py")
    command = [str(arguments.vllm_python), str(worker), str(answer_path)]
    subprocess.run(command, input=json.dumps(job), text=True, check=True, stdout=sys.stderr)
    answer: dict[str, Any] = json.loads(answer_path.read_text())
    return answer


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["| K | tokens | equal | vLLM: steps, accepted by position | ours |", "|---|---|---|---|---|"]
    for row in rows:
        sides = [f"{row[side]['num_drafts']}, {row[side]['accepted_by_position']}" for side in ("vllm", "ours")]
        equal = "yes" if row["equal"] else "tokens only" if row["same_tokens"] else "no"
        lines.append(f"| {row['draft_tokens']} | {row['tokens']} | {equal} | {sides[0]} | {sides[1]} |")
    return "\n".join(lines)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run_script(main))
