"""Writes checkpoints with the names, shapes, types and shards of published models, as files full of holes.

    scripts/synthesize_checkpoint gpt-oss-120b -o FOLDER [--fill-layer N]... [--fill-tables] [--fill-drafter] [--seed S]
                                  [--num-layers N] [--table-rows N]

FOLDER/target and FOLDER/drafter then look like the published checkpoints: 65 GB of them take a few megabytes of disk,
since what is not written reads as zeros. Norms are ones; whole layers, the embedding and output tables and the drafter
can be filled with seeded random values. The models' configurations lie in scripts/published, each with its source.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from peagle_trt.cli.script import positive, run_script
from peagle_trt.errors import UsageError

PUBLISHED = Path(__file__).parent / "published"
ELEMENT_BYTES = {"BF16": 2, "U8": 1, "BOOL": 1, "I64": 8}
# Order of types within a file: the format's own writer puts wide elements first, then names in order.
_WIDTH_ORDER = ("I64", "BF16", "U8", "BOOL")
_CHUNK_ELEMENTS = 1 << 22
# Around 2^-6: with codes up to 6 the weights of a layer then have a standard deviation near 0.05.
_LOWEST_SCALE, _HIGHEST_SCALE = 119, 122


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a checkpoint.

    Attributes:
        name: As published.
        dtype: As safetensors spells it.
        shape: Dimensions, outermost first.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * ELEMENT_BYTES[self.dtype]


IsFilled = Callable[[str], bool]
"""Whether a tensor of that name gets random values."""
_TABLES = ("embed_tokens.weight", "lm_head.weight")


def published_models() -> list[str]:
    """Names of the models that can be written."""
    return sorted(path.stem for path in PUBLISHED.glob("*.json"))


def read_published(model: str) -> dict[str, Any]:
    """Configurations and sources of a model."""
    published: dict[str, Any] = json.loads((PUBLISHED / f"{model}.json").read_text(encoding="utf-8"))
    return published


def target_tensors(config: Mapping[str, Any]) -> list[Tensor]:
    """Every tensor of a target, in the order of the model's modules."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    tensors = [Tensor(name="model.embed_tokens.weight", dtype="BF16", shape=(vocabulary, hidden))]
    layer_tensors = _gpt_oss_layer if config["model_type"] == "gpt_oss" else _qwen3_moe_layer
    for layer in range(config["num_hidden_layers"]):
        shapes = layer_tensors(config)
        tensors += [
            Tensor(
                name=f"model.layers.{layer}.{name}",
                dtype="U8" if name.endswith(("_blocks", "_scales")) else "BF16",
                shape=shape,
            )
            for name, shape in shapes.items()
        ]
    tensors.append(Tensor(name="model.norm.weight", dtype="BF16", shape=(hidden,)))
    tensors.append(Tensor(name="lm_head.weight", dtype="BF16", shape=(vocabulary, hidden)))
    return tensors


def drafter_tensors(config: Mapping[str, Any]) -> list[Tensor]:
    """Every tensor of a P-EAGLE head in the spelling of the first published ones."""
    hidden, vocabulary, drafted = config["hidden_size"], config["vocab_size"], config["draft_vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocabulary, hidden),
        "fc.weight": (hidden, 3 * hidden),
        "mask_hidden": (1, 1, 3 * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafted, hidden),
        "midlayer.hidden_norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = "midlayer." if layer == 0 else f"layers.{layer}."
        width = 2 * hidden if layer == 0 else hidden
        shapes |= {f"{prefix}{name}": shape for name, shape in _drafter_layer(config, width).items()}
    tensors = [Tensor(name=name, dtype="BF16", shape=shape) for name, shape in shapes.items()]
    tensors.append(Tensor(name="d2t", dtype="I64", shape=(drafted,)))
    tensors.append(Tensor(name="t2d", dtype="BOOL", shape=(vocabulary,)))
    return tensors


def cut_shards(tensors: list[Tensor], max_bytes: int) -> list[list[Tensor]]:
    """Tensors of each file, cut in the order of the modules as transformers cuts them."""
    shards: list[list[Tensor]] = [[]]
    size_bytes = 0
    for tensor in tensors:
        if size_bytes + tensor.size_bytes > max_bytes and shards[-1]:
            shards.append([])
            size_bytes = 0
        shards[-1].append(tensor)
        size_bytes += tensor.size_bytes
    return shards


def write_target(
    folder: Path, published: Mapping[str, Any], *, is_filled: IsFilled, seed: int, table_rows: int | None = None
) -> None:
    """Write a target: configuration, shards, index and a tokenizer of bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    config = published["config"]
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", published["generation_config"])
    _write_json(folder / "tokenizer_config.json", {"eos_token": published["eos_token"]})
    _write_json(folder / "tokenizer.json", byte_tokenizer(published["special_tokens"]))
    shards = cut_shards(target_tensors(config), published["max_shard_bytes"])
    first = published["first_shard"]
    last = first + len(shards) - 1
    weight_map: dict[str, str] = {}
    for number, tensors in enumerate(shards, first):
        name = f"model-{number:05}-of-{last:05}.safetensors"
        filled = [limit_rows(tensor, table_rows) for tensor in tensors if is_filled(tensor.name)]
        write_file(folder / name, tensors, filled, seed=seed)
        weight_map |= {tensor.name: name for tensor in tensors}
    total = sum(tensor.size_bytes for tensors in shards for tensor in tensors)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_drafter(
    folder: Path, published: Mapping[str, Any], *, is_filled: IsFilled, seed: int, table_rows: int | None = None
) -> None:
    """Write a head: configuration and one file."""
    folder.mkdir(parents=True, exist_ok=True)
    config = published["drafter_config"]
    _write_json(folder / "config.json", config)
    tensors = drafter_tensors(config)
    filled = [limit_rows(tensor, table_rows) for tensor in tensors if is_filled(tensor.name)]
    write_file(folder / "model.safetensors", tensors, filled, seed=seed)


def write_file(path: Path, tensors: Sequence[Tensor], filled: Sequence[Tensor], *, seed: int) -> None:
    """Write one safetensors file; what is neither a norm nor filled stays a hole.

    Args:
        path: The file.
        tensors: What it holds.
        filled: Those that get random values, with the shapes that are filled.
        seed: Of the values.
    """
    fillings = {tensor.name: tensor for tensor in filled}
    ordered = sorted(tensors, key=lambda tensor: (_WIDTH_ORDER.index(tensor.dtype), tensor.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in ordered:
        begin, end = end, end + tensor.size_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        for tensor in ordered:
            _write_values(file, tensor, fillings.get(tensor.name), seed)
            start += tensor.size_bytes
            file.seek(start)
        file.truncate(start)


def limit_rows(tensor: Tensor, table_rows: int | None) -> Tensor:
    """The part of a tensor that is filled: all of it, but of an embedding or output table only some first rows."""
    if table_rows is None or not tensor.name.endswith(_TABLES):
        return tensor
    return replace(tensor, shape=(min(table_rows, tensor.shape[0]), *tensor.shape[1:]))


def random_values(tensor: Tensor, seed: int) -> Iterator[NDArray[np.generic]]:
    """Values of a filled tensor, a piece at a time; the same for a name and a seed wherever the tensor lies.

    Matrices get a standard deviation of 1 / sqrt(columns), so that rows keep their size from layer to layer.
    """
    rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
    remaining = int(np.prod(tensor.shape, dtype=np.int64))
    spread = 0.2 if len(tensor.shape) == 1 or tensor.name.endswith("bias") else tensor.shape[-1] ** -0.5
    if tensor.name.endswith(("embed_tokens.weight", "mask_hidden")):
        spread = 1.0
    while remaining:
        count = min(remaining, _CHUNK_ELEMENTS)
        remaining -= count
        if tensor.name.endswith("_blocks"):
            yield rng.integers(0, 256, count, dtype=np.uint8)
        elif tensor.name.endswith("_scales"):
            yield rng.integers(_LOWEST_SCALE, _HIGHEST_SCALE + 1, count, dtype=np.uint8)
        else:
            values = rng.standard_normal(count, dtype=np.float32) * np.float32(spread)
            yield to_bfloat16(values + 1 if _is_norm(tensor.name) else values)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of float32 values, cut off rather than rounded: random values need no better."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def byte_tokenizer(special_tokens: Mapping[str, int]) -> dict[str, Any]:
    """A tokenizer.json whose tokens are the 256 bytes, and the special ones where the published tokenizer has them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)} | dict(special_tokens)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special_tokens))
    described: dict[str, Any] = json.loads(tokenizer.to_str())
    return described


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=published_models())
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for `target` and `drafter`")
    parser.add_argument(
        "--num-layers", type=positive, help="shorten the target; its drafter then reads layers 0, 1 and 2"
    )
    parser.add_argument("--fill-layer", type=int, action="append", default=[], help="fill a layer of the target")
    parser.add_argument("--fill-tables", action="store_true", help="fill the target's embedding and output layer")
    parser.add_argument("--fill-drafter", action="store_true", help="fill the whole drafter")
    parser.add_argument("--table-rows", type=positive, help="fill only so many rows of the tables that are filled")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    published = read_published(arguments.model)
    if arguments.num_layers is not None:
        published = shorten(published, arguments.num_layers)
    layers, fills_tables = set(arguments.fill_layer), arguments.fill_tables
    write_target(
        arguments.output / "target",
        published,
        is_filled=lambda name: fills_tables if (layer := layer_of(name)) is None else layer in layers,
        seed=arguments.seed,
        table_rows=arguments.table_rows,
    )
    fills_drafter = arguments.fill_drafter
    write_drafter(
        arguments.output / "drafter",
        published,
        is_filled=lambda _: fills_drafter,
        seed=arguments.seed + 1,
        table_rows=arguments.table_rows,
    )
    for path in (arguments.output / "target", arguments.output / "drafter"):
        files = [file.stat() for file in path.iterdir()]
        apparent, taken = sum(stat.st_size for stat in files), sum(stat.st_blocks * 512 for stat in files)
        print(f"{path}: {apparent:,} bytes in {len(files)} files, {taken:,} on the disk")


def shorten(published: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    """The same model with fewer layers; a head needs the streams around two layers at least."""
    if num_layers < 2:
        raise UsageError("a target needs 2 layers, for a drafter reads 3 of its streams")
    config = dict(published["config"], num_hidden_layers=num_layers)
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:num_layers]
    head = dict(published["drafter_config"])
    head["eagle_config"] = dict(head["eagle_config"], eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return dict(published, config=config, drafter_config=head)


def layer_of(name: str) -> int | None:
    """Layer that a target's tensor belongs to, or None."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return int(found[1]) if found else None


def _attention(config: Mapping[str, Any], width: int) -> dict[str, tuple[int, ...]]:
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    return {
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (config["hidden_size"], queries),
    }


def _norms(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    return {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}


def _gpt_oss_layer(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Source: the published index; a block is 32 values in 16 bytes with a scale of one byte."""
    hidden, width, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    attention = _attention(config, hidden)
    biases = {name.replace(".weight", ".bias"): shape[:1] for name, shape in attention.items()}
    return {
        **_norms(config),
        "self_attn.sinks": (config["num_attention_heads"],),
        **attention,
        **biases,
        "mlp.router.weight": (experts, hidden),
        "mlp.router.bias": (experts,),
        "mlp.experts.gate_up_proj_blocks": (experts, 2 * width, hidden // 32, 16),
        "mlp.experts.gate_up_proj_scales": (experts, 2 * width, hidden // 32),
        "mlp.experts.gate_up_proj_bias": (experts, 2 * width),
        "mlp.experts.down_proj_blocks": (experts, hidden, width // 32, 16),
        "mlp.experts.down_proj_scales": (experts, hidden, width // 32),
        "mlp.experts.down_proj_bias": (experts, hidden),
    }


def _qwen3_moe_layer(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Source: transformers' mapping of the published names, one tensor for each projection of each expert."""
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        **_norms(config),
        **_attention(config, hidden),
        "self_attn.q_norm.weight": (config["head_dim"],),
        "self_attn.k_norm.weight": (config["head_dim"],),
        "mlp.gate.weight": (config["num_experts"], hidden),
    }
    for expert in range(config["num_experts"]):
        prefix = f"mlp.experts.{expert}."
        shapes |= {f"{prefix}gate_proj.weight": (width, hidden), f"{prefix}up_proj.weight": (width, hidden)}
        shapes[f"{prefix}down_proj.weight"] = (hidden, width)
    return shapes


def _drafter_layer(config: Mapping[str, Any], width: int) -> dict[str, tuple[int, ...]]:
    hidden, feed_forward = config["hidden_size"], config["intermediate_size"]
    return {
        **_norms(config),
        **_attention(config, width),
        "mlp.gate_proj.weight": (feed_forward, hidden),
        "mlp.up_proj.weight": (feed_forward, hidden),
        "mlp.down_proj.weight": (hidden, feed_forward),
    }


def _is_norm(name: str) -> bool:
    return name.endswith("norm.weight")


def _write_values(file: BinaryIO, tensor: Tensor, filling: Tensor | None, seed: int) -> None:
    if tensor.name == "t2d":
        file.write(np.ones(tensor.shape, np.bool_).data)
    elif tensor.name == "d2t":
        return
    elif filling is not None:
        for piece in random_values(filling, seed):
            file.write(piece.data)
    elif _is_norm(tensor.name):
        file.write(to_bfloat16(np.ones(tensor.shape, np.float32)).data)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(run_script(main))
