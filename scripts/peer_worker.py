"""Decodes with one engine, prompt by prompt; started by compare_peers.py with the Python that the engine lies in.

First argument: the engine. Reads JSON documents, a line each, from stdin. The first is the job: {"target", "drafter",
"method", "draft_tokens", "max_tokens", "max_length", "threads"}; it is answered by {"version"} once everything is
loaded. Each other is a list of token ids, answered by {"tokens", "seconds", "cpu_seconds"}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[int]], list[int]]


def main() -> None:
    """Answer until stdin ends."""
    # Libraries print to stdout as they please; answers go where stdout was.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    version, generate = ENGINES[sys.argv[1]](job)
    print(json.dumps({"version": version}), file=answers, flush=True)
    for line in sys.stdin:
        started, cpu_started = time.perf_counter(), time.process_time()
        tokens = generate(json.loads(line))
        answer = {
            "tokens": tokens,
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu_started,
        }
        print(json.dumps(answer), file=answers, flush=True)


def open_ours(job: dict[str, Any]) -> tuple[str, Generate]:
    """A build of ours; `target` is its folder."""
    from pathlib import Path

    from peagle_trt import __version__
    from peagle_trt.decode.loop import DecodeLoop
    from peagle_trt.decode.request import GenerationRequest
    from peagle_trt.decode.session import open_build

    loaded = open_build(Path(job["target"]), num_threads=job["threads"])
    draft_tokens = job["draft_tokens"] if job["method"] == "p-eagle" else 0

    def generate(prompt: list[int]) -> list[int]:
        loop = DecodeLoop(loaded.engine, None)
        loop.submit(
            GenerationRequest(
                request_id="0", prompt_ids=tuple(prompt), max_tokens=job["max_tokens"], draft_tokens=draft_tokens
            )
        )
        return [token for _ in iter(lambda: loop.has_work, False) for chunk in loop.step() for token in chunk.token_ids]

    return __version__, generate


def open_transformers(job: dict[str, Any]) -> tuple[str, Generate]:
    """Transformers' `generate`."""
    import torch
    import transformers

    torch.set_num_threads(job["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(job["target"], dtype=torch.float32)
    # Endings belong to the settings of the checkpoint; every answer here has its full length.
    model.generation_config.eos_token_id = None
    more = {"prompt_lookup_num_tokens": job["draft_tokens"]} if job["method"] == "prompt-lookup" else {}

    def generate(prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=job["max_tokens"],
                pad_token_id=0,
                **more,
            )
        tokens: list[int] = found[0, len(prompt) :].tolist()
        return tokens

    return transformers.__version__, generate


def open_vllm(job: dict[str, Any]) -> tuple[str, Generate]:
    """VLLM's `LLM` on the CPU, with the same head."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="1",
        # Pinning threads would put them on cores that others use.
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        OMP_NUM_THREADS=str(job["threads"]),
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
    )
    import vllm

    speculative = {
        "method": "eagle3",
        "model": job["drafter"],
        "num_speculative_tokens": job["draft_tokens"],
        "parallel_drafting": True,
    }
    model = vllm.LLM(
        model=job["target"],
        dtype="float32",
        max_model_len=job["max_length"],
        max_num_seqs=1,
        enforce_eager=True,
        enable_prefix_caching=False,
        seed=0,
        speculative_config=speculative if job["method"] == "p-eagle" else None,
    )
    sampling = vllm.SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)

    def generate(prompt: list[int]) -> list[int]:
        found = model.generate([vllm.TokensPrompt(prompt_token_ids=prompt)], sampling, use_tqdm=False)
        return list(found[0].outputs[0].token_ids)

    return vllm.__version__, generate


def open_llama_cpp(job: dict[str, Any]) -> tuple[str, Generate]:
    """llama.cpp through its Python binding; `target` is a GGUF file."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    is_lookup = job["method"] == "prompt-lookup"
    model = llama_cpp.Llama(
        job["target"],
        n_ctx=job["max_length"],
        n_threads=job["threads"],
        n_threads_batch=job["threads"],
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=job["draft_tokens"]) if is_lookup else None,
        logits_all=is_lookup,
        verbose=False,
    )

    def generate(prompt: list[int]) -> list[int]:
        model.reset()
        stream = model.generate(prompt, temp=0.0)
        return [next(stream) for _ in range(job["max_tokens"])]

    return llama_cpp.__version__, generate


def open_openvino(job: dict[str, Any]) -> tuple[str, Generate]:
    """OpenVINO GenAI's pipeline; `target` is an exported folder."""
    import numpy as np
    import openvino
    import openvino_genai

    is_lookup = job["method"] == "prompt-lookup"
    more = {"prompt_lookup": True} if is_lookup else {}
    pipe = openvino_genai.LLMPipeline(job["target"], "CPU", INFERENCE_NUM_THREADS=job["threads"], **more)
    settings = openvino_genai.GenerationConfig(max_new_tokens=job["max_tokens"], ignore_eos=True, do_sample=False)
    if is_lookup:
        settings.num_assistant_tokens, settings.max_ngram_size = job["draft_tokens"], 3

    def generate(prompt: list[int]) -> list[int]:
        ids = openvino.Tensor(np.array([prompt], np.int64))
        mask = openvino.Tensor(np.ones((1, len(prompt)), np.int64))
        found = pipe.generate(openvino_genai.TokenizedInputs(ids, mask), settings)
        return [int(token) for token in found.tokens[0]]

    return str(openvino_genai.__version__), generate


def open_onnxruntime_genai(job: dict[str, Any]) -> tuple[str, Generate]:
    """onnxruntime-genai; `target` is a folder of its model builder."""
    import onnxruntime_genai

    model = onnxruntime_genai.Model(job["target"])

    def generate(prompt: list[int]) -> list[int]:
        length = len(prompt) + job["max_tokens"]
        settings = onnxruntime_genai.GeneratorParams(model)
        settings.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = onnxruntime_genai.Generator(model, settings)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]

    return str(onnxruntime_genai.__version__), generate


ENGINES: dict[str, Callable[[dict[str, Any]], tuple[str, Generate]]] = {
    "peagle-trt": open_ours,
    "transformers": open_transformers,
    "vllm": open_vllm,
    "llama.cpp": open_llama_cpp,
    "openvino": open_openvino,
    "onnxruntime-genai": open_onnxruntime_genai,
}


if __name__ == "__main__":
    main()
