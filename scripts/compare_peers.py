"""Decodes the same prompts with other engines and with a build of ours, in turns, and makes one table.

Every peer lives in a virtual environment of its own under `--work`, made when it is first asked for (`--python` names
one that exists). All engines are loaded at once and answer prompt by prompt, so that a ratio is of one and the same
moment of the machine; a peer that cannot be installed or fails is named, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle_trt.decode.session import open_build
from peagle_trt.pipeline import build
from peagle_trt.spec import BuildSpec
from scripts.compare_vllm import _checkpoints, _convert, _prompt_ids
from scripts.peers import PEERS, Peer

OURS = "peagle-trt"
BASE = (OURS, "plain")
"""What ratios are over."""


@dataclass(slots=True, kw_only=True)
class Engine:
    """A running peer.

    Attributes:
        name: Of the peer.
        method: How it decodes.
        process: Its worker.
        version: What the worker said.
        answers: What it answered so far.
    """

    name: str
    method: str
    process: subprocess.Popen[str]
    version: str
    answers: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, document: object) -> dict[str, Any]:
        """Send a document and wait for its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(document) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the worker."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    """Install, load, decode in turns, print; ends with 1 where a peer failed."""
    arguments = _arguments()
    arguments.work.mkdir(parents=True, exist_ok=True)
    target, drafter = _checkpoints(arguments)
    folders = _folders(arguments, target, drafter)
    loaded = open_build(folders["build"], num_threads=arguments.threads)
    prompts = _prompt_ids(loaded, arguments)
    loaded.engine.close()
    failures: dict[str, str] = {}
    engines: list[Engine] = []
    for name in dict.fromkeys([OURS, *arguments.peers]):
        try:
            _start(name, folders, arguments, engines)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            failures[name] = str(error)
            _say(f"{name}: {error}")
    _decode(engines, prompts, failures)
    print(_table(engines, failures))
    sys.exit(1 if failures else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for environments, models and the build; kept")
    parser.add_argument("--peers", type=_names, default=tuple(name for name in PEERS if name != OURS))
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="an environment that exists")
    parser.add_argument("--gguf", type=Path, help="the target for llama.cpp")
    parser.add_argument("--target", default="tiny", help="catalog name or Hugging Face folder")
    parser.add_argument("--drafter", type=Path, help="a P-EAGLE head; by default the shipped one")
    parser.add_argument("--prompts", default="gsm8k")
    parser.add_argument("--num-prompts", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-k", "--draft-tokens", type=int, default=3)
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(PEERS)}")
    return names


def _folders(arguments: argparse.Namespace, target: Path, drafter: Path) -> dict[str, Path]:
    """The checkpoint, our build of it, and the head as vLLM reads it."""
    folders = {"target": target, "build": arguments.work / "build", "drafter": arguments.work / "head"}
    spec = BuildSpec(
        name="compared",
        target_path=target,
        drafter_path=drafter,
        tokenizer_path=target,
        output_path=folders["build"],
        max_sequence_length=arguments.max_length,
    )
    build(spec, report=_say)
    if not folders["drafter"].exists():
        _convert(drafter, target, folders["drafter"])
    return folders


def _start(name: str, folders: dict[str, Path], arguments: argparse.Namespace, engines: list[Engine]) -> None:
    """Add the workers of a peer, one for each of its methods."""
    peer = PEERS[name]
    python = _python(name, peer, arguments)
    model = _model(name, peer, python, folders, arguments)
    worker = Path(__file__).with_name("peer_worker.py")
    for method in peer.methods:
        job = {
            "target": str(model),
            "drafter": str(folders["drafter"]),
            "method": method,
            **{key: getattr(arguments, key) for key in ("draft_tokens", "max_tokens", "max_length", "threads")},
        }
        threads = str(arguments.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(
            [str(python), str(worker), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        engine = Engine(name=name, method=method, process=process, version="")
        # Before it has answered, so that it is closed whatever happens.
        engines.append(engine)
        engine.version = str(engine.ask(job)["version"])
        _say(f"{name} {engine.version}, {method}: loaded")


def _python(name: str, peer: Peer, arguments: argparse.Namespace) -> Path:
    """The peer's interpreter; its environment is made where there is none."""
    given = dict(pair.split("=", 1) for pair in arguments.python)
    if name in given:
        return Path(given[name])
    if name == OURS:
        return Path(sys.executable)
    folder: Path = arguments.work / "environments" / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if not stamp.is_file():
        _say(f"{name}: installing {', '.join(peer.requirements)}")
        venv.create(folder, with_pip=True, clear=True)
        _pip(python, "install", *peer.requirements)
        for package in peer.removed:
            _pip(python, "uninstall", "--yes", package)
        stamp.touch()
    return python


def _pip(python: Path, *words: str) -> None:
    subprocess.run([str(python), "-m", "pip", words[0], "--quiet", *words[1:]], check=True, stdout=sys.stderr)


def _model(name: str, peer: Peer, python: Path, folders: dict[str, Path], arguments: argparse.Namespace) -> Path:
    """The target as the peer reads it."""
    if name == OURS:
        return folders["build"]
    if name == "llama.cpp":
        if arguments.gguf is None:
            raise RuntimeError("wants the target as --gguf FILE")
        return Path(arguments.gguf)
    if not peer.prepare:
        return folders["target"]
    output: Path = arguments.work / "models" / name
    if not output.exists():
        places = {"target": str(folders["target"]), "output": str(output)}
        words = [word.format(**places) for word in peer.prepare]
        subprocess.run([str(python), *words], check=True, stdout=sys.stderr)
    return output


def _decode(engines: list[Engine], prompts: list[list[int]], failures: dict[str, str]) -> None:
    """Every engine answers every prompt; the first one twice, since much is loaded at first use."""
    for number, prompt in enumerate([prompts[0], *prompts]):
        for engine in engines:
            if engine.name in failures:
                continue
            try:
                answer = engine.ask(prompt)
            except (OSError, RuntimeError) as error:
                failures[engine.name] = str(error)
                continue
            if number:
                engine.answers.append(answer)
        _say(f"prompt {number} of {len(prompts)}")
    for engine in engines:
        engine.close()


def _table(engines: list[Engine], failures: dict[str, str]) -> str:
    base = next(engine for engine in engines if (engine.name, engine.method) == BASE)
    lines = [
        "| engine | method | tokens/s | tokens a CPU second | over ours, plain (quartiles) | same tokens | note |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_row(engine, base) for engine in engines if engine.name not in failures]
    lines += [f"| {name} | - | - | - | - | - | failed: {reason} |" for name, reason in failures.items()]
    return "\n".join(lines)


def _row(engine: Engine, base: Engine) -> str:
    tokens = sum(len(answer["tokens"]) for answer in engine.answers)
    rates = {key: tokens / sum(answer[key] for answer in engine.answers) for key in ("seconds", "cpu_seconds")}
    # In CPU time: what other programs of the machine do is in neither side.
    ratios = [
        (len(mine["tokens"]) / mine["cpu_seconds"]) / (len(theirs["tokens"]) / theirs["cpu_seconds"])
        for mine, theirs in zip(engine.answers, base.answers, strict=True)
    ]
    spread = ""
    if len(ratios) > 1:
        low, _, high = statistics.quantiles(ratios, n=4)
        spread = f" ({low:.2f}-{high:.2f})"
    same = sum(a["tokens"] == b["tokens"] for a, b in zip(engine.answers, base.answers, strict=True))
    return (
        f"| {engine.name} {engine.version} | {engine.method} | {rates['seconds']:.1f} | {rates['cpu_seconds']:.1f} | "
        f"{statistics.median(ratios):.2f}{spread} | {same} of {len(ratios)} | {PEERS[engine.name].note} |"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
