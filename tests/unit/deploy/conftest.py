"""A build that holds no engine: enough for everything that is derived from the manifest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from peagle_trt.metrics import Labels
from peagle_trt.spec import (
    ARTIFACT_FORMAT,
    DrafterConfig,
    EngineFile,
    EngineManifest,
    GraphShapes,
    RopeConfig,
    TargetConfig,
    TokenizerFiles,
)

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"

TARGET = TargetConfig(
    architecture="LlamaForCausalLM",
    hidden_size=8,
    intermediate_size=16,
    num_layers=6,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    vocab_size=256,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    max_positions=128,
    eos_token_ids=(2,),
)

DRAFTER = DrafterConfig(
    dialect="ours",
    hidden_size=8,
    target_hidden_size=8,
    intermediate_size=16,
    num_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    vocab_size=256,
    draft_vocab_size=256,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    max_positions=128,
    mask_token_id=0,
    aux_layer_ids=(1, 2, 3),
)


def byte_tokenizer() -> Tokenizer:
    """One token a byte; ids follow the alphabet's order."""
    vocabulary = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def plain_manifest() -> EngineManifest:
    """Of a build without files."""
    return EngineManifest(
        format=ARTIFACT_FORMAT,
        peagle_trt_version="0.1.0",
        name="a-target",
        backend="onnxruntime",
        precision="fp32",
        target=TARGET,
        drafter=DRAFTER,
        shapes=GraphShapes(
            draft_tokens=5, max_draft_tokens=8, max_batch_size=8, max_sequence_length=128, cache_capacity=144
        ),
        tokenizer=TokenizerFiles(tokenizer="tokenizer/tokenizer.json", chat_template="tokenizer/chat_template.jinja"),
        graphs={f"{role}.b8": f"engine/{role}.b8.onnx" for role in ("target", "drafter")},
        files=(),
        sources={},
    )


@pytest.fixture
def manifest() -> EngineManifest:
    return plain_manifest()


@pytest.fixture
def build_path(tmp_path: Path, manifest: EngineManifest) -> Path:
    contents = {
        "tokenizer/tokenizer.json": byte_tokenizer().to_str().encode(),
        "tokenizer/chat_template.jinja": TEMPLATE.encode(),
        "engine/target.b8.onnx": b"not a graph",
        "engine/drafter.b8.onnx": b"no graph either",
    }
    path = tmp_path / "a build"
    for name, content in contents.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    files = tuple(
        EngineFile(path=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    )
    (path / "manifest.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))
    return path


class Published:
    """Keeps what would go to the server."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Labels, float]] = []

    def increment(self, name: str, labels: Labels, value: float) -> None:
        self.sent.append(("increment", name, labels, value))

    def set(self, name: str, labels: Labels, value: float) -> None:
        self.sent.append(("set", name, labels, value))

    def observe(self, name: str, labels: Labels, value: float) -> None:
        self.sent.append(("observe", name, labels, value))

    def of(self, name: str) -> list[float]:
        return [value for _, sent_name, _, value in self.sent if sent_name == name]
