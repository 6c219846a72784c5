"""vLLM's own classes read the descriptions that `convert --recipe` writes, and leave out what it left out."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from peagle_trt.quant.layer_recipes import load_layer_recipe
from peagle_trt.readers import read_head, read_target
from peagle_trt.writers.loaders.folder import read_quantized_folder
from peagle_trt.writers.loaders.vllm import prefixes_of
from peagle_trt.writers.quantized import quantize_head, quantize_target
from tests.support.quantized_export import write_shrunk

pytestmark = pytest.mark.vllm

WORKER = """
import json, sys
from pathlib import Path
from vllm.model_executor.layers.quantization.modelopt import ModelOptFp8Config, ModelOptNvFp4Config
folder, wanted = Path(sys.argv[1]), json.loads(sys.argv[2])
for document in (
    json.loads((folder / "config.json").read_text())["quantization_config"],
    json.loads((folder / "hf_quant_config.json").read_text()),
):
    kind = ModelOptFp8Config if sys.argv[3] == "FP8" else ModelOptNvFp4Config
    config = kind.from_config(document)
    config.packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    print("WRONG", [name for name, is_quantized in wanted if config.is_layer_excluded(name) == is_quantized])
"""


@pytest.mark.parametrize("recipe", ["fp8", "fp8-kv", "nvfp4", "nvfp4-mlp", "w4a16-nvfp4"])
@pytest.mark.parametrize("part", ["target", "drafter"])
def test_vllm_leaves_out_what_was_left_out(tmp_path: Path, recipe: str, part: str) -> None:
    write_shrunk(tmp_path, "qwen3-coder-30b-a3b")
    rules, out = load_layer_recipe(recipe), tmp_path / "out"
    if part == "target":
        algorithm = quantize_target(read_target(tmp_path / part), rules, out).algorithm
    else:
        algorithm = quantize_head(read_head(tmp_path / part), None, rules, "vllm", out).algorithm
    folder = read_quantized_folder(out)
    wanted = [
        (prefix, module.is_quantized)
        for module in folder.modules.values()
        if not module.name.endswith("embed_tokens")
        for prefix in prefixes_of(folder, module.name)
    ]
    command = [os.environ["PEAGLE_TRT_VLLM_PYTHON"], "-c", WORKER, str(out), json.dumps(wanted), str(algorithm)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.stdout.splitlines()[-2:] == ["WRONG []", "WRONG []"], finished.stderr[-2000:]
