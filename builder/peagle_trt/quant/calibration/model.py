"""The target as transformers runs it: checked against the recipe, loaded, and asked for answers."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peagle_trt.errors import CheckpointError, MachineError, UsageError
from peagle_trt.quant.calibration.recipes import CalibrationRecipe
from peagle_trt.readers import TargetCheckpoint, read_target
from peagle_trt.readers.packed import NVFP4_BLOCK

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LINEARS = ("_proj", "experts_gate_up_proj", "experts_down_proj")
_FLOAT32_BYTES = 4


def read_calibratable(folder: Path, recipe: CalibrationRecipe) -> TargetCheckpoint:
    """Read a target's checkpoint and refuse what calibration would stumble over later; no tensor is loaded.

    Raises:
        CheckpointError: It is damaged, quantized already, or has rows that the recipe cannot cut into blocks.
        UsageError: It is no folder of transformers, or has none of the layers that the recipe quantizes.
        MachineError: It would not fit into memory.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"`{folder}` is no folder with a config.json",
            hint="calibration runs transformers; GGUF files it cannot take",
        )
    target = read_target(folder)
    if recipe.needs_experts and target.config.experts is None:
        raise UsageError(
            f"recipe `{recipe.name}` quantizes experts, and `{folder}` has none", hint="take `nvfp4` or `nvfp4-mlp`"
        )
    _require_unquantized(folder, target)
    _require_blocks(folder, target, recipe)
    _require_memory(folder, target)
    return target


def load_model(target: TargetCheckpoint) -> Any:
    """The target in float32, experts one by one.

    Raises:
        MachineError: The extra `quant` is not installed.
    """
    import torch

    transformers = require_quant_extra()
    settings: dict[str, Any] = {"dtype": torch.float32}
    if any(tensor.packed for tensor in target.weights.values()):
        settings["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    if target.config.experts is not None:
        settings["experts_implementation"] = "eager"
    with _quiet(transformers):
        model = transformers.AutoModelForCausalLM.from_pretrained(target.path, **settings)
    # Experts that came in MXFP4 are bfloat16 whatever was asked for.
    return model.eval().float()


def require_quant_extra() -> Any:
    """transformers, once modelopt is known to be there too.

    Raises:
        MachineError: The extra `quant` is not installed.
    """
    from importlib.util import find_spec

    try:
        import transformers

        if find_spec("modelopt") is None:
            raise ImportError("No module named 'modelopt'")
    except ImportError as error:
        raise MachineError(
            f"calibration needs modelopt: {error}", hint="install the extra: pip install 'peagle-trt[quant]'"
        ) from error
    return transformers


def encode_turns(target: TargetCheckpoint, turns: Sequence[str]) -> list[list[int]]:
    """Users' turns as token ids, in the target's chat template where it has one.

    Raises:
        CheckpointError: The checkpoint has no tokenizer.
        UsageError: There are no turns.
    """
    if not turns:
        raise UsageError("no texts to calibrate on", hint="name a set of prompts or a file of them")
    if target.tokenizer is None:
        raise CheckpointError(f"`{target.path}` has no tokenizer", hint="put its tokenizer.json beside the weights")
    tokenizer = require_quant_extra().AutoTokenizer.from_pretrained(target.path)
    if target.tokenizer.chat_template is None:
        return [tokenizer(turn)["input_ids"] for turn in turns]
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True)
        for turn in turns
    ]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def answer(model: Any, texts: Sequence[Sequence[int]], max_new_tokens: int) -> list[list[int]]:
    """Each text with the model's own greedy continuation: activations of answers are not those of questions."""
    import torch
    from transformers import GenerationConfig

    if max_new_tokens == 0:
        return [list(text) for text in texts]
    ends = model.generation_config.eos_token_id
    pad = ends[0] if isinstance(ends, list) else ends
    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=ends, pad_token_id=0 if pad is None else pad
    )
    answers = []
    for text in texts:
        token_ids = torch.tensor([list(text)])
        whole = model.generate(token_ids, attention_mask=torch.ones_like(token_ids), generation_config=settings)
        answers.append(whole[0].tolist())
    return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStreams:
    """A text and what a drafter reads of it.

    Attributes:
        token_ids: [T] int64.
        hidden_TA: [T, A*H] float32, the residual streams entering the auxiliary layers, ascending.
    """

    token_ids: NDArray[np.int64]
    hidden_TA: NDArray[np.float32]


def capture_streams(model: Any, text: Sequence[int], layers: Sequence[int]) -> TargetStreams:
    """Run a text through the model and keep the streams that enter some layers.

    Args:
        model: Not quantized yet.
        text: Token ids.
        layers: Ascending; the number of layers stands for the last one's output.
    """
    import numpy as np
    import torch

    kept: dict[int, Any] = {}

    def keep(layer: int) -> Any:
        def take(module: Any, arguments: tuple[Any, ...]) -> None:
            kept[layer] = arguments[0][0].float().numpy().copy()

        return take

    places = [*model.model.layers, model.model.norm]
    hooks = [places[layer].register_forward_pre_hook(keep(layer)) for layer in layers]
    try:
        with torch.inference_mode():
            model(input_ids=torch.tensor([list(text)]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    hidden_TA = np.concatenate([kept[layer] for layer in layers], axis=1)
    return TargetStreams(token_ids=np.array(text, np.int64), hidden_TA=hidden_TA)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Keep stdout for results: modelopt prints what it does."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _require_unquantized(folder: Path, target: TargetCheckpoint) -> None:
    for tensor in target.weights.values():
        for part in (tensor, *tensor.parts):
            # MXFP4 experts become NVFP4 without a change, so only their activations are of interest.
            if part.packed is not None and part.packed.form != "mxfp4":
                raise CheckpointError(
                    f"`{folder}`: `{part.packed.codes.name}` is quantized already, as {part.packed.form}",
                    hint="calibrate the checkpoint that it was made from",
                )


def _require_blocks(folder: Path, target: TargetCheckpoint, recipe: CalibrationRecipe) -> None:
    if recipe.scheme != "nvfp4":
        return
    for name, tensor in target.weights.items():
        if name.startswith("layers.") and name.endswith("_proj") and tensor.shape[-1] % NVFP4_BLOCK:
            raise CheckpointError(
                f"`{folder}`: `{tensor.spec.name}` has rows of {tensor.shape[-1]}, no multiple of {NVFP4_BLOCK}",
                hint="calibrate for `fp8`",
            )


def _require_memory(folder: Path, target: TargetCheckpoint) -> None:
    needed = sum(_FLOAT32_BYTES * _count(tensor.shape) for tensor in target.weights.values())
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise MachineError(
            f"`{folder}` takes {needed:,} bytes as float32, and this machine has {available:,}",
            hint="calibrate on a larger machine, and pack here with the file of scales it writes",
        )


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without its bars of progress, which belong to no log."""
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.utils.logging.enable_progress_bar()
