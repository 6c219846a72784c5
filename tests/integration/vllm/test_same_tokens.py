"""vLLM and a build of ours, with the same converted head: see scripts/compare_vllm for what is compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peagle_trt import catalog
from tests.support.heads import without_mask

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("draft_tokens", [1, 5])
def test_tokens_and_accepted_drafts_by_position_are_those_of_vllm(draft_tokens: int) -> None:
    vllm_python = os.environ["PEAGLE_TRT_VLLM_PYTHON"]
    command = [sys.executable, str(ROOT / "scripts/compare_vllm.py"), "--vllm-python", vllm_python]
    command += ["-k", str(draft_tokens), "--num-prompts", "3", "--max-tokens", "32"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert f"| {draft_tokens} | 96 | yes |" in finished.stdout


def test_a_plain_eagle3_head_drafts_as_in_vllm(tmp_path: Path) -> None:
    head = without_mask(catalog.drafter_path(catalog.find_entry("tiny")), tmp_path / "head")
    command = [sys.executable, str(ROOT / "scripts/compare_vllm.py"), "--drafter", str(head)]
    command += ["--vllm-python", os.environ["PEAGLE_TRT_VLLM_PYTHON"], "-k", "3", "--num-prompts", "3"]
    finished = subprocess.run([*command, "--max-tokens", "32"], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "| 3 | 96 | yes |" in finished.stdout
