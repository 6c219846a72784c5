"""Decodes with one engine, batch by batch; started by compare_peers.py with the Python that the engine lies in.

First argument: the engine. Reads JSON documents, a line each, from stdin. The first is the job: {"target", "drafter",
"method", "draft_tokens", "max_tokens", "max_length", "max_batch", "threads"}; it is answered by {"version"} once
everything is loaded. Each other is {"prompts": [[token ids]]}, all in flight together, answered by {"tokens": [[ids]],
"seconds", "cpu_seconds"}. Every answer has `max_tokens`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

PADDING = 0

Prompts = list[list[int]]
Generate = Callable[[Prompts], list[list[int]]]


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
        tokens = generate(json.loads(line)["prompts"])
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
    loaded.engine.preload(plain_steps=job["method"] == "plain")
    draft_tokens = 0 if job["method"] == "plain" else job["draft_tokens"]

    def generate(prompts: Prompts) -> list[list[int]]:
        loop = DecodeLoop(loaded.engine, None)
        for index, prompt in enumerate(prompts):
            loop.submit(
                GenerationRequest(
                    request_id=str(index),
                    prompt_ids=tuple(prompt),
                    max_tokens=job["max_tokens"],
                    draft_tokens=draft_tokens,
                    prompt_lookup=job["method"] == "p-eagle+lookup",
                )
            )
        answers: list[list[int]] = [[] for _ in prompts]
        while loop.has_work:
            for chunk in loop.step():
                if chunk.finish_reason == "error":
                    raise RuntimeError(chunk.error)
                answers[int(chunk.request_id)] += chunk.token_ids
        return answers

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

    def generate(prompts: Prompts) -> list[list[int]]:
        ids, mask = (torch.tensor(rows) for rows in padded(prompts))
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=job["max_tokens"],
                pad_token_id=0,
                **more,
            )
        tokens: list[list[int]] = found[:, ids.shape[1] :].tolist()
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
        max_num_seqs=job["max_batch"],
        enforce_eager=True,
        enable_prefix_caching=False,
        seed=0,
        speculative_config=speculative if job["method"] == "p-eagle" else None,
    )
    sampling = vllm.SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)

    def generate(prompts: Prompts) -> list[list[int]]:
        asked = [vllm.TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        found = model.generate(asked, sampling, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in found]

    return vllm.__version__, generate


def open_llama_cpp(job: dict[str, Any]) -> tuple[str, Generate]:
    """llama.cpp's own library; `target` is a GGUF file."""
    import llama_cpp

    from scripts.llama_cpp_peer import LlamaCpp

    model = LlamaCpp(job["target"], threads=job["threads"], max_length=job["max_length"], max_batch=job["max_batch"])
    draft_tokens = job["draft_tokens"] if job["method"] == "prompt-lookup" else 0

    def generate(prompts: Prompts) -> list[list[int]]:
        return model.generate(prompts, job["max_tokens"], draft_tokens)

    return str(llama_cpp.__version__), generate


def open_openvino(job: dict[str, Any]) -> tuple[str, Generate]:
    """OpenVINO GenAI's pipelines; `target` is an exported folder.

    One prompt is answered by its pipeline for one, several by the one that batches; each is the faster there.
    """
    import numpy as np
    import openvino
    import openvino_genai

    is_lookup = job["method"] == "prompt-lookup"
    # Its own defaults are bfloat16, where the processor has it, and a cache of 8 bits.
    properties = {
        "INFERENCE_PRECISION_HINT": openvino.Type.f32,
        "INFERENCE_NUM_THREADS": job["threads"],
        "KV_CACHE_PRECISION": openvino.Type.f32,
        **({"prompt_lookup": True} if is_lookup else {}),
    }
    settings = openvino_genai.GenerationConfig(max_new_tokens=job["max_tokens"], ignore_eos=True, do_sample=False)
    if is_lookup:
        settings.num_assistant_tokens, settings.max_ngram_size = job["draft_tokens"], 3
    alone = openvino_genai.LLMPipeline(job["target"], "CPU", **properties)
    together = None
    if job["max_batch"] > 1:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs, scheduler.cache_size = job["max_batch"], 1
        scheduler.enable_prefix_caching = False
        together = openvino_genai.ContinuousBatchingPipeline(
            job["target"], scheduler_config=scheduler, device="CPU", properties=properties
        )

    def generate(prompts: Prompts) -> list[list[int]]:
        ids = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        if len(prompts) > 1:
            assert together is not None
            answers = together.generate(ids, [settings] * len(ids))
            return [[int(token) for token in each.m_generation_ids[0]] for each in answers]
        mask = openvino.Tensor(np.ones((1, len(prompts[0])), np.int64))
        found = alone.generate(openvino_genai.TokenizedInputs(ids[0], mask), settings)
        return [[int(token) for token in found.tokens[0]]]

    return str(openvino_genai.__version__), generate


def open_onnxruntime_genai(job: dict[str, Any]) -> tuple[str, Generate]:
    """onnxruntime-genai; `target` is a folder of its model builder."""
    import numpy as np
    import onnxruntime_genai

    config = onnxruntime_genai.Config(job["target"])
    sessions = {"intra_op_num_threads": job["threads"]}
    # The padding of a shorter prompt is told from its words by this id, which must therefore be none of theirs.
    config.overlay(json.dumps({"model": {"pad_token_id": PADDING, "decoder": {"session_options": sessions}}}))
    model = onnxruntime_genai.Model(config)

    def generate(prompts: Prompts) -> list[list[int]]:
        longest = max(map(len, prompts))
        # Behind the words: its attention counts them from the front.
        ids = [prompt + [PADDING] * (longest - len(prompt)) for prompt in prompts]
        length = longest + job["max_tokens"]
        settings = onnxruntime_genai.GeneratorParams(model)
        settings.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=len(ids))
        generator = onnxruntime_genai.Generator(model, settings)
        generator.append_tokens(np.array(ids, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        return [[int(token) for token in generator.get_sequence(row)[longest:]] for row in range(len(ids))]

    return str(onnxruntime_genai.__version__), generate


def padded(prompts: Prompts) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts of one length, filled up in front, and a mask of what is theirs."""
    longest = max(map(len, prompts))
    ids = [[PADDING] * (longest - len(prompt)) + prompt for prompt in prompts]
    return ids, [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]


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
