"""Decodes the same prompts with other engines and with a build of ours, in turns, and makes one table.

Every peer lives in a virtual environment of its own under `--work`, made when it is first asked for (`--python` names
one that exists). All engines are loaded at once and answer batch by batch, so that a ratio is of one and the same
moment of the machine; a peer that cannot be installed, fails or falls silent is named, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

from peagle_trt.bench.prompt_sets import read_prompts
from peagle_trt.cli.script import positive, positives, run_script
from peagle_trt.decode.session import LoadedBuild, open_build
from peagle_trt.errors import PeagleError
from peagle_trt.files import write_text
from peagle_trt.pipeline import build
from peagle_trt.spec import BuildSpec
from scripts.compare_vllm import _checkpoints, _convert
from scripts.peer_process import Engine, PeerError, start_engine
from scripts.peer_table import document, table
from scripts.peers import OURS, PEERS, Peer
from scripts.write_gguf import write_gguf

ROOT = Path(__file__).resolve().parents[1]
JOB = ("draft_tokens", "max_tokens", "max_length", "threads")

Batch = tuple[str, int, list[list[int]]]
"""Set of prompts, number in flight, prompts."""


def main() -> int:
    """Install, load, decode in turns, print; ends with 1 where a peer failed."""
    arguments = _arguments()
    engines, failures = compare(arguments)
    if arguments.output is not None:
        settings = {name: _plain(value) for name, value in vars(arguments).items()}
        write_text(arguments.output, json.dumps(document(engines, failures, settings), indent=1) + "\n")
    print(table(engines, failures))
    return 1 if failures else 0


def compare(arguments: argparse.Namespace) -> tuple[list[Engine], dict[tuple[str, str], str]]:
    """Engines with what they answered, and why others are missing, by peer and method.

    Raises:
        PeagleError: There is nothing to compare: a checkpoint, a set of prompts or our build is missing.
    """
    arguments.work.mkdir(parents=True, exist_ok=True)
    target, drafter = (path.resolve() for path in _checkpoints(arguments))
    folders = _folders(arguments, target, drafter)
    loaded = open_build(folders["build"], num_threads=arguments.threads)
    batches = list(_batches(loaded, arguments))
    loaded.engine.close()
    failures: dict[tuple[str, str], str] = {}
    engines: list[Engine] = []
    try:
        for name in dict.fromkeys([OURS, *arguments.peers]):
            _start(name, folders, arguments, engines, failures)
        decode(engines, batches, failures)
    finally:
        for engine in engines:
            engine.close()
    return engines, failures


def decode(engines: list[Engine], batches: list[Batch], failures: dict[tuple[str, str], str]) -> None:
    """Every engine answers every batch; first one that is not counted, since much is loaded at first use.

    Args:
        engines: Loaded; take their answers in.
        batches: What to answer.
        failures: Takes in what fails; who fails is not asked again.
    """
    warm_ups = list({concurrency: batch for batch in batches for concurrency in (batch[1],)}.values())
    for number, (prompts_name, concurrency, prompts) in enumerate([*warm_ups, *batches]):
        # Who goes first changes: what one leaves in the caches must not always fall to the same other.
        turn = number % len(engines) if engines else 0
        for engine in engines[turn:] + engines[:turn]:
            is_alone = engine.method not in PEERS[engine.name].batching
            if engine.key in failures or (is_alone and concurrency > 1):
                continue
            try:
                answer = engine.ask({"prompts": prompts})
            except (OSError, ValueError, PeerError) as error:
                failures[engine.key] = f"{prompts_name}, {concurrency} in flight: {error}"
                _say(f"{engine.name}, {engine.method}: {error}")
                continue
            if number >= len(warm_ups):
                engine.rounds.setdefault((prompts_name, concurrency), []).append(answer)
        _say(f"batch {number + 1} of {len(warm_ups) + len(batches)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=_path, required=True, help="folder for environments, models and the build; kept")
    parser.add_argument("--peers", type=_names, default=tuple(name for name in PEERS if name != OURS))
    parser.add_argument(
        "--python",
        action="append",
        type=_interpreter,
        default=[],
        metavar="PEER=PATH",
        help="an environment that exists",
    )
    parser.add_argument("--gguf", type=_path, help="a file for llama.cpp; by default the target is written as one")
    parser.add_argument("--target", default="tiny", help="catalog name or Hugging Face folder")
    parser.add_argument("--drafter", type=_path, help="a P-EAGLE head; by default the shipped one")
    parser.add_argument("--eagle3-build", type=_path, help="a build of the same target with an EAGLE-3 head")
    parser.add_argument("--prompts", default="gsm8k,mt-bench", help="sets or files, a list")
    parser.add_argument("--num-prompts", type=positive, default=8, help="of each set")
    parser.add_argument("--concurrency", type=positives, default=(1,), help="prompts in flight, a list")
    parser.add_argument("--max-tokens", type=positive, default=64)
    parser.add_argument("--max-length", type=positive, default=512)
    parser.add_argument("--threads", type=positive, default=1, help="of every engine")
    parser.add_argument("-k", "--draft-tokens", type=positive, default=3)
    parser.add_argument("--timeout", type=float, default=600.0, help="longest wait for an answer, in seconds")
    parser.add_argument("-o", "--output", type=_path, help="file for all figures and answers, as JSON")
    return parser.parse_args()


def _path(text: str) -> Path:
    # Workers run in the project's folder.
    return Path(text).resolve()


def _interpreter(text: str) -> str:
    name, _, path = text.partition("=")
    if name not in PEERS or not path:
        raise argparse.ArgumentTypeError(f"`{text}` is no PEER=PATH, where PEER is one of {', '.join(PEERS)}")
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(PEERS)}")
    return names


def _folders(arguments: argparse.Namespace, target: Path, drafter: Path) -> dict[str, Path]:
    """The checkpoint, our build of it, and the head as vLLM reads it."""
    _refuse_other_pair(arguments.work / "pair.txt", f"{target}\n{drafter}\n")
    folders = {"target": target, "build": arguments.work / "build", "drafter": arguments.work / "head"}
    spec = BuildSpec(
        name="compared",
        target_path=target,
        drafter_path=drafter,
        tokenizer_path=target,
        output_path=folders["build"],
        max_sequence_length=arguments.max_length,
        max_batch_size=max(arguments.concurrency),
    )
    build(spec, report=_say)
    if not folders["drafter"].exists():
        _convert(drafter, target, folders["drafter"])
    return folders


def _refuse_other_pair(path: Path, pair: str) -> None:
    """What is kept in a folder was made of one pair."""
    if path.is_file() and path.read_text() != pair:
        raise PeagleError(f"`{path.parent}` holds the models of another pair (`{path}`)", hint="choose another --work")
    write_text(path, pair)


def _batches(loaded: LoadedBuild, arguments: argparse.Namespace) -> Iterator[Batch]:
    """Full batches only: one that is not full is of another kind."""
    longest = arguments.max_length - arguments.max_tokens - 1
    ask = loaded.chat_request if loaded.tokenizer.has_chat_template else loaded.request
    for name in arguments.prompts.split(","):
        texts = read_prompts(name, arguments.num_prompts).prompts
        ids = [list(ask(text, max_tokens=1).prompt_ids) for text in texts]
        fitting = [prompt for prompt in ids if len(prompt) <= longest]
        _say(f"{name}: {len(fitting)} of {len(ids)} prompts leave room for an answer")
        for concurrency in arguments.concurrency:
            count = len(fitting) // concurrency
            if not count:
                raise PeagleError(
                    f"`{name}`: {len(fitting)} prompts of at most {longest} tokens are too few for {concurrency}",
                    hint="a larger --num-prompts or --max-length",
                )
            for first in range(0, count * concurrency, concurrency):
                yield name, concurrency, fitting[first : first + concurrency]


def _start(
    name: str,
    folders: Mapping[str, Path],
    arguments: argparse.Namespace,
    engines: list[Engine],
    failures: dict[tuple[str, str], str],
) -> None:
    """Add the workers of a peer, one for each of its methods."""
    peer = PEERS[name]
    with_eagle3 = name == OURS and arguments.eagle3_build is not None
    methods = (*peer.methods, "eagle3") if with_eagle3 else peer.methods
    try:
        python = _python(name, peer, arguments)
        model = _model(name, peer, python, folders, arguments)
    except (OSError, PeagleError, subprocess.SubprocessError) as error:
        failures.update({(name, method): str(error) for method in methods})
        _say(f"{name}: {error}")
        return
    for method in methods:
        job = {
            "target": str(arguments.eagle3_build if method == "eagle3" else model),
            "drafter": str(folders["drafter"]),
            "method": method,
            "max_batch": max(arguments.concurrency) if method in peer.batching else 1,
            **{key: getattr(arguments, key) for key in JOB},
        }
        engine = start_engine(
            name,
            method,
            [str(python), "-m", "scripts.peer_worker", name],
            root=ROOT,
            log_path=arguments.work / "logs" / f"{name}-{method}.log",
            threads=arguments.threads,
            timeout_seconds=arguments.timeout,
        )
        # Before it has answered, so that it is closed whatever happens.
        engines.append(engine)
        try:
            engine.version = str(engine.ask(job)["version"])
        except (OSError, ValueError, PeerError) as error:
            failures[engine.key] = f"while loading: {error}"
        _say(f"{name} {engine.version}, {method}: {failures.get(engine.key, 'loaded')}")


def _python(name: str, peer: Peer, arguments: argparse.Namespace) -> Path:
    """The peer's interpreter; its environment is made where there is none."""
    given = dict(pair.split("=", 1) for pair in arguments.python)
    if name in given:
        # Not resolved: where it lies tells a virtual environment's python what belongs to it.
        return Path(given[name]).absolute()
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


def _model(name: str, peer: Peer, python: Path, folders: Mapping[str, Path], arguments: argparse.Namespace) -> Path:
    """The target as the peer reads it."""
    if name == OURS:
        return folders["build"]
    output: Path = arguments.work / "models" / name
    if name == "llama.cpp":
        if arguments.gguf is not None:
            return Path(arguments.gguf)
        path = output.with_suffix(".gguf")
        if not path.is_file():
            write_gguf(folders["target"], path)
        return path
    if not peer.prepare:
        return folders["target"]
    if not output.exists():
        places = {"target": str(folders["target"]), "output": str(output)}
        words = [word.format(**places) for word in peer.prepare]
        subprocess.run([str(python), *words], check=True, stdout=sys.stderr)
    return output


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run_script(main))
