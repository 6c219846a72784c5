"""What each recipe does to a target: errors of weights, logits, perplexity, GSM8K, and the acceptance of drafts.

    scripts/measure_quantization TARGET_FOLDER HEAD_FOLDER -o FOLDER [--recipes fp8,nvfp4] [--keep-above 0.1]

FOLDER gets results.json, table.md, errors.md and, where matplotlib is installed, plot.png; a second run takes over what
results.json has. Weights are worth what their codes are; logits, perplexity and GSM8K are simulated in torch, with
activations and cache rounded on calibrated scales; acceptance lengths come from builds of the fp32 recipe, where
activations are not rounded. Scales come from MT-Bench; texts, problems and prompts are of other sets.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import sys
import time
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch

from peagle_trt.bench.known_answers import problems, questions_with_answers
from peagle_trt.calibrate import calibrate
from peagle_trt.cli.script import positive, run_script
from peagle_trt.errors import UsageError
from peagle_trt.files import remove_folder, write_text
from peagle_trt.quant.calibration import Scales, read_scales
from peagle_trt.quant.calibration.dequantized import WeightPlan, modules_above, write_dequantized
from peagle_trt.readers import read_drafter, read_target
from scripts.quantization_measures import (
    acceptance_lengths,
    answer_problems,
    compare_logits,
    encode_chats,
    load_plain,
    simulated,
)
from scripts.quantization_recipes import RECIPES, MeasuredRecipe
from scripts.quantization_report import error_table, plot, table

UNQUANTIZED = "fp32"
CALIBRATION_PROMPTS = "mt-bench"
_FREE_OPTIONS = ("output", "recipes", "threads")


class Measurement:
    """One run; results are written after each measure, so that nothing is measured twice.

    Args:
        options: Of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.work = options, options.output
        self.work.mkdir(parents=True, exist_ok=True)
        self._path = self.work / "results.json"
        self.results: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self._require_same_settings()

    def measure(self, recipe: MeasuredRecipe | None) -> None:
        """Everything about one recipe, or about the unquantized pair."""
        name = recipe.name if recipe else UNQUANTIZED
        found: dict[str, Any] = self.results.setdefault(name, {})
        if "drafts" in found:
            return
        folders = self.work / "dequantized"
        target, drafter = self._dequantize(recipe, found) if recipe else (self.options.target, self.options.drafter)
        self._once(found, "answers", lambda: self._answers(recipe, target, found))
        places = {"drafts": (self.options.target, self.options.drafter)}
        if recipe:
            places = {
                "drafts_target_only": (target, self.options.drafter),
                "drafts_drafter_only": (self.options.target, drafter),
                "drafts": (target, drafter),
            }
        twin = self._twin(found)
        for measure, pair in places.items():
            self._once(found, measure, lambda m=measure, pair=pair: twin.get(m) or self._drafts(*pair))  # type: ignore[misc]
        remove_folder(folders)

    def _twin(self, found: dict[str, Any]) -> dict[str, Any]:
        """What was measured of a recipe with the same weights, which differs in activations and cache alone."""
        kinds = ("weight_errors", "drafter_weight_errors", "kept")
        same = [
            other
            for other in self.results.values()
            if "drafts" in other and all(other.get(kind) == found.get(kind) for kind in kinds)
        ]
        return same[0] if same else {}

    def _require_same_settings(self) -> None:
        """Refuse to put figures of other settings into one table."""
        settings = {key: str(value) for key, value in vars(self.options).items() if key not in _FREE_OPTIONS}
        path = self.work / "settings.json"
        if path.exists() and json.loads(path.read_text()) != settings:
            raise UsageError(f"`{path}` names other settings", hint="take another folder, or the same settings")
        write_text(path, json.dumps(settings, indent=2) + "\n")

    def _once(self, found: dict[str, Any], name: str, work: Any) -> None:
        if name in found:
            return
        started = time.process_time()
        found[name] = work()
        print(f"{name}: {found[name]} ({time.process_time() - started:.0f} CPU seconds)", file=sys.stderr)
        write_text(self._path, json.dumps(self.results, indent=2) + "\n")

    def _dequantize(self, recipe: MeasuredRecipe, found: dict[str, Any]) -> tuple[Path, Path]:
        print(f"--- {recipe.name}", file=sys.stderr)
        folders = self.work / "dequantized"
        scales = self._scales(recipe)
        weights = read_target(self.options.target).weights
        plan = WeightPlan(scheme=recipe.scheme, parts=recipe.parts, column_scales=scales.values if scales else None)
        errors = write_dequantized(self.options.target, weights, folders / "target", plan)
        kept = self._kept(errors)
        if kept:
            plan = WeightPlan(scheme=recipe.scheme, parts=recipe.parts, kept=kept, column_scales=plan.column_scales)
            errors = write_dequantized(self.options.target, weights, folders / "target", plan)
        found["kept"] = kept
        # No scales of AWQ are searched for drafters.
        head = read_drafter(self.options.drafter, num_target_layers=read_target(self.options.target).config.num_layers)
        drafter_plan = WeightPlan(scheme=recipe.scheme)
        drafter_errors = write_dequantized(self.options.drafter, head.weights, folders / "drafter", drafter_plan)
        found["weight_errors"], found["drafter_weight_errors"] = errors, drafter_errors
        return folders / "target", folders / "drafter"

    def _kept(self, errors: dict[str, float]) -> list[str]:
        """Modules that are left alone, by their weights' errors or by name."""
        limit = inf if self.options.keep_above is None else self.options.keep_above
        named = {name for pattern in self.options.keep for name in fnmatch.filter(errors, pattern)}
        return modules_above({name: inf if name in named else error for name, error in errors.items()}, min(limit, 1e9))

    def _scales(self, recipe: MeasuredRecipe) -> Scales | None:
        if not recipe.calibration:
            return None
        path = self.work / f"{recipe.calibration}.safetensors"
        if not path.exists():
            calibrate(
                self.options.target,
                recipe.calibration,
                CALIBRATION_PROMPTS,
                path,
                num_prompts=self.options.calibration_prompts,
            )
        return read_scales(path)

    def _answers(self, recipe: MeasuredRecipe | None, folder: Path, found: dict[str, Any]) -> dict[str, Any]:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.options.target)
        texts = encode_chats(tokenizer, questions_with_answers(self.options.num_texts))
        plain, asked = load_plain(self.options.target), problems(self.options.num_problems)
        model = plain if recipe is None else load_plain(folder)
        around = contextlib.nullcontext
        if recipe is not None:
            around = partial(simulated, model, recipe, self._scales(recipe), found.get("kept", []))
        figures = asdict(compare_logits(plain, model, texts, around))
        with around():
            numbers = answer_problems(model, tokenizer, asked, self.options.max_answer_tokens)
        right = sum(number == wanted for number, (_, wanted) in zip(numbers, asked, strict=True))
        plain_numbers = self.results[UNQUANTIZED]["answers"]["numbers"] if recipe else numbers
        same = sum(number == other for number, other in zip(numbers, plain_numbers, strict=True))
        return {**figures, "numbers": numbers, "num_right": right, "num_same": same}

    def _drafts(self, target: Path, drafter: Path) -> dict[str, float]:
        return acceptance_lengths(
            target,
            drafter,
            self.work,
            prompt_sets=self.options.prompts.split(","),
            num_prompts=self.options.num_prompts,
            max_tokens=self.options.max_tokens,
            k=self.options.draft_tokens,
        )


def main() -> None:
    """Measure and write the report."""
    options = _options()
    torch.set_num_threads(options.threads)
    chosen = options.recipes.split(",")
    unknown = [name for name in chosen if name not in RECIPES]
    if unknown:
        raise UsageError(f"unknown recipes {unknown}", hint=f"known: {', '.join(RECIPES)}")
    for folder in (options.target, options.drafter):
        if not (folder / "config.json").is_file():
            raise UsageError(f"`{folder}` is no folder with a config.json", hint="transformers reads the pair")
    measurement = Measurement(options)
    measurement.measure(None)
    for name in chosen:
        measurement.measure(RECIPES[name])
    text = table(measurement.results)
    write_text(options.output / "table.md", text)
    write_text(options.output / "errors.md", error_table(measurement.results))
    plot(measurement.results, options.output / "plot.png")
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("drafter", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--recipes", default=",".join(RECIPES), help=f"some of {', '.join(RECIPES)}")
    parser.add_argument("--keep-above", type=float, help="leave out modules whose weight error is larger")
    parser.add_argument("--keep", action="append", default=[], help="modules to leave out, as a pattern of a shell")
    parser.add_argument("--num-texts", type=int, default=32, help="of GSM8K and HumanEval each, for logits")
    parser.add_argument("--num-problems", type=int, default=100, help="of GSM8K, to be solved")
    parser.add_argument("--max-answer-tokens", type=positive, default=256, help="of an answer to a problem")
    parser.add_argument("--prompts", default="mt-bench,humaneval,gsm8k", help="sets for acceptance lengths")
    parser.add_argument("--num-prompts", type=positive, default=20, help="of each set")
    parser.add_argument("--max-tokens", type=positive, default=128, help="of an answer to a prompt")
    parser.add_argument("-k", "--draft-tokens", type=positive, default=5)
    parser.add_argument("--calibration-prompts", type=positive, default=32)
    parser.add_argument("--threads", type=positive, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run_script(main))
