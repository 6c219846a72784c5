"""A P-EAGLE or EAGLE-3 head in plain torch, without caches: every row recomputed at every step.

Written from the architecture's description, independently of the graphs it checks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from peagle_trt.engine.protocol import DraftRows
from tests.support.models import HIDDEN, VOCABULARY


class DrafterReference:
    """Drafts from the full history each time.

    Args:
        tensors: The head's tensors by checkpoint name.
        config: Its config.json.
        embedding: [V, H], the table it embeds tokens with.
        lm_head: [D, H], its output layer.
    """

    def __init__(
        self, tensors: dict[str, np.ndarray], config: dict[str, Any], embedding: np.ndarray, lm_head: np.ndarray
    ) -> None:
        self.t = {
            name: torch.from_numpy(np.asarray(value)).double() for name, value in tensors.items() if name != "d2t"
        }
        self.c = config
        self.embedding, self.lm_head = torch.from_numpy(embedding).double(), torch.from_numpy(lm_head).double()

    def draft_logits(self, next_token_ids: list[int], hidden: np.ndarray, draft_tokens: int) -> np.ndarray:
        """Logits [K, D] after a history of rows 0..n-1.

        Args:
            next_token_ids: Token after each row; the last is the bonus.
            hidden: [n, A Ht] auxiliary hidden states of the rows.
            draft_tokens: K.
        """
        masks = draft_tokens - 1
        tokens = torch.tensor([*next_token_ids, *[self.c["mask_token_id"]] * masks])
        states = torch.cat([torch.from_numpy(hidden).double(), self.t["mask_hidden"].reshape(1, -1).repeat(masks, 1)])
        stream = self._layers(tokens, self._before_fc(states) @ self.t["fc.weight"].T)
        last = self._norm(stream, "norm")[-draft_tokens:]
        return (last @ self.lm_head.T).numpy()

    def sequential_logits(self, next_token_ids: list[int], hidden: np.ndarray, drafts: list[int]) -> np.ndarray:
        """Logits [K, D] of K passes of a plain EAGLE-3 head, each of which continues from the draft before it.

        Args:
            next_token_ids: Token after each row; the last is the bonus.
            hidden: [n, A Ht] auxiliary hidden states of the rows.
            drafts: The K - 1 tokens that passes after the first read.
        """
        states = self._before_fc(torch.from_numpy(hidden).double()) @ self.t["fc.weight"].T
        tokens, logits = list(next_token_ids), []
        for draft in [*drafts, None]:
            stream = self._layers(torch.tensor(tokens), states)
            last = self._norm(stream, "norm")[-1:]
            logits.append(last @ self.lm_head.T)
            if draft is not None:
                states = torch.cat([states, last if self.c.get("norm_output") else stream[-1:]])
                tokens.append(draft)
        return torch.cat(logits).numpy()

    def _layers(self, tokens: torch.Tensor, fused: torch.Tensor) -> torch.Tensor:
        """The stream after the last layer."""
        embedded = self._norm(self.embedding[tokens], "layers.0.input_layernorm")
        normed = self._norm(fused, "layers.0.hidden_norm")
        stream = normed if self.c.get("norm_before_residual") else fused
        rows = torch.cat([embedded, normed], dim=-1)
        for layer in range(self.c["num_hidden_layers"]):
            prefix = f"layers.{layer}"
            if layer > 0:
                rows = self._norm(stream, f"{prefix}.input_layernorm")
            stream = stream + self._attention(rows, f"{prefix}.self_attn", self._window(layer))
            stream = stream + self._mlp(self._norm(stream, f"{prefix}.post_attention_layernorm"), f"{prefix}.mlp")
        return stream

    def _before_fc(self, states: torch.Tensor) -> torch.Tensor:
        if self.c.get("norm_before_fc"):
            states = self._norm(states, "input_norm")
        if self.c.get("fc_norm"):
            parts = states.split(self.c["target_hidden_size"], dim=-1)
            states = torch.cat([self._norm(part, f"fc_norm.{index}") for index, part in enumerate(parts)], dim=-1)
        return states

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        variance = rows.pow(2).mean(-1, keepdim=True)
        return rows * torch.rsqrt(variance + self.c["rms_norm_eps"]) * self.t[f"{name}.weight"]

    def _project(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        return rows @ self.t[f"{name}.weight"].T + self.t.get(f"{name}.bias", 0.0)

    def _mlp(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        gate, up = (self._project(rows, f"{name}.{part}_proj") for part in ("gate", "up"))
        return self._project(torch.nn.functional.silu(gate) * up, f"{name}.down_proj")

    def _window(self, layer: int) -> int:
        kinds = self.c.get("layer_types")
        return int(self.c["sliding_window"]) if kinds and kinds[layer] == "sliding_attention" else 0

    def _attention(self, rows: torch.Tensor, name: str, window: int) -> torch.Tensor:
        dim, count = self.c["head_dim"], len(rows)
        query, key, value = (self._project(rows, f"{name}.{part}_proj").view(count, -1, dim) for part in "qkv")
        if self.c["model_type"] == "qwen3":
            query, key = self._norm(query, f"{name}.q_norm"), self._norm(key, f"{name}.k_norm")
        query, key = self._rotate(query), self._rotate(key)
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) / dim**0.5
        distance = torch.arange(count)[:, None] - torch.arange(count)[None, :]
        hidden = (distance < 0) | (distance >= window if window else False)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self._project(torch.einsum("hqk,khd->qhd", weights, value).reshape(count, -1), f"{name}.o_proj")

    def _rotate(self, heads: torch.Tensor) -> torch.Tensor:
        dim = self.c["head_dim"]
        inverse = self.c["rope_theta"] ** (-torch.arange(0, dim, 2).double() / dim)
        angles = (torch.arange(len(heads)).double()[:, None] * inverse[None, :])[:, None, :]
        first, second = heads[..., : dim // 2], heads[..., dim // 2 :]
        return torch.cat(
            [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
        )


class History:
    """Rows a drafter has accepted so far, and the outcome of the next verify step."""

    def __init__(self, seed: int, width: int = 3 * HIDDEN) -> None:
        self.width = width
        self.rng = np.random.default_rng(seed)
        self.tokens: list[int] = []
        self.hidden: list[np.ndarray] = []

    def advance(self, slot: int, rows: int, accepted: int) -> DraftRows:
        tokens = self.rng.integers(3, VOCABULARY - 1, rows).astype(np.int32)
        hidden = self.rng.standard_normal((rows, self.width)).astype(np.float32)
        start = len(self.tokens)
        self.tokens += tokens[: accepted + 1].tolist()
        self.hidden += list(hidden[: accepted + 1])
        hidden[accepted + 1 :] = np.nan
        return DraftRows(slot=slot, next_token_ids=tokens, hidden=hidden, num_accepted=accepted, start_position=start)
