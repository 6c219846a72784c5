"""Runs one target and head in vLLM; started by compare_vllm.py with the Python that vLLM is installed in.

Reads a job from stdin: {"target", "drafter", "draft_tokens", "parallel_drafting", "prompts": [[token ids]],
"max_tokens", "max_length"}.
Writes to the file named by the only argument: {"version", "tokens": [[ids]], "num_drafts", "accepted_by_position"}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer the job's prompts greedily."""
    job = json.load(sys.stdin)
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="1",
        # Pinning threads would put them on cores that others use.
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
    )
    import vllm

    model = vllm.LLM(
        model=job["target"],
        dtype="float32",
        max_model_len=job["max_length"],
        # A prompt read in chunks gets other drafts at the chunk's end than one read whole.
        max_num_batched_tokens=2 * job["max_length"] * len(job["prompts"]),
        max_num_seqs=len(job["prompts"]),
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        speculative_config={
            "method": "eagle3",
            "model": job["drafter"],
            "num_speculative_tokens": job["draft_tokens"],
            # An EAGLE-3 head drafts one token a pass.
            "parallel_drafting": job["parallel_drafting"],
        },
    )
    prompts = [vllm.TokensPrompt(prompt_token_ids=ids) for ids in job["prompts"]]
    sampling = vllm.SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
    answers = model.generate(prompts, sampling, use_tqdm=False)
    document = {
        "version": vllm.__version__,
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        **_counts(model.get_metrics()),
    }
    Path(sys.argv[1]).write_text(json.dumps(document))


def _counts(metrics: list[Any]) -> dict[str, Any]:
    found = {metric.name.removeprefix("vllm:spec_decode_"): metric for metric in metrics}
    return {
        "num_drafts": int(found["num_drafts"].value),
        "accepted_by_position": [int(value) for value in found["num_accepted_tokens_per_pos"].values],
    }


if __name__ == "__main__":
    main()
