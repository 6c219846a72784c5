"""An engine whose target and drafter are small tables, so that exact distributions are known.

The target's next token depends on the last two tokens; the drafter's slot k on the last real token alone. The engine
keeps what each slot's cache would hold and refuses a step that reads what was never written.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from peagle_trt.engine.protocol import DraftOutput, DraftRows, DraftStep, TargetOutput, TargetRows
from peagle_trt.spec import DrafterConfig, GraphShapes, RopeConfig, TargetConfig

VOCABULARY = 7


class MarkovEngine:
    """See `peagle_trt.engine.protocol.Engine`.

    Args:
        seed: Of the tables.
        agreement: How much of the target's logits the drafter knows; 0 is an unrelated drafter, 1 a good one.
        max_sequence_length: Tokens of prompt and answer together.
        max_batch_size: Slots.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        agreement: float = 0.7,
        max_sequence_length: int = 64,
        max_batch_size: int = 4,
        draft_tokens: int = 3,
    ) -> None:
        rng = np.random.default_rng(seed)
        size = (VOCABULARY, VOCABULARY, VOCABULARY)
        self.target_logits = rng.standard_normal(size).astype(np.float32) * 1.5
        noise = rng.standard_normal((16, VOCABULARY, VOCABULARY)).astype(np.float32) * 1.5
        self.draft_logits = agreement * self.target_logits.mean(0)[None] + (1 - agreement) * noise
        self.shapes = GraphShapes(
            draft_tokens=draft_tokens,
            max_draft_tokens=16,
            max_batch_size=max_batch_size,
            max_sequence_length=max_sequence_length,
            cache_capacity=max_sequence_length + 32,
        )
        shared = {
            "hidden_size": 1,
            "intermediate_size": 1,
            "num_layers": 1,
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "head_dim": 1,
            "vocab_size": VOCABULARY,
            "rms_norm_eps": 1e-5,
            "rope": RopeConfig(),
            "max_positions": max_sequence_length,
            "aux_layer_ids": (1,),
        }
        self.target = TargetConfig(architecture="markov", **shared)
        self.drafter = DrafterConfig(
            dialect="markov", target_hidden_size=1, draft_vocab_size=VOCABULARY, mask_token_id=6, **shared
        )
        self.draft_to_target = np.arange(VOCABULARY, dtype=np.int64)
        self.cache: dict[int, dict[int, int]] = {}
        self.drafter_rows: dict[int, list[int]] = {}
        self.batches: list[int] = []
        self.num_rows_read = 0
        self.fails_at: int | None = None

    def next_logits(self, history: Sequence[int]) -> np.ndarray:
        """[V] the target's logits after a history."""
        return self.target_logits[history[-2] if len(history) > 1 else 0, history[-1]]

    def run_target(self, rows: Sequence[TargetRows]) -> list[TargetOutput]:
        self.batches.append(len(rows))
        if self.fails_at is not None and len(self.batches) >= self.fails_at:
            raise RuntimeError("the engine broke")
        assert len({item.slot for item in rows}) == len(rows) <= self.shapes.max_batch_size
        self.num_rows_read += sum(len(item.token_ids) for item in rows)
        return [self._read(item) for item in rows]

    def copy_rows(self, source_slot: int, target_slot: int, num_rows: int) -> None:
        assert source_slot != target_slot
        source = self.cache[source_slot]
        self.cache[target_slot] = {position: source[position] for position in range(num_rows)}
        self.drafter_rows[target_slot] = self.drafter_rows[source_slot][:num_rows]

    def _read(self, item: TargetRows) -> TargetOutput:
        if item.start_position == 0:
            self.cache[item.slot] = {}
            self.drafter_rows[item.slot] = []
        cache = self.cache[item.slot]
        assert all(position in cache for position in range(item.start_position))
        logits = []
        for offset, token in enumerate(item.token_ids.tolist()):
            position = item.start_position + offset
            cache[position] = token
            logits.append(self.next_logits([cache.get(position - 1, 0), token]))
        kept = np.array(logits[len(logits) - item.num_logit_rows :], np.float32).reshape(-1, VOCABULARY)
        return TargetOutput(logits=kept, hidden=np.zeros((len(item.token_ids), 1), np.float32))

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        logits = np.zeros((len(rows), draft_tokens, VOCABULARY), np.float32)
        for index, item in enumerate(rows):
            # The drafter reads every accepted row in order; what it read of an earlier request must be the same still.
            read = self.drafter_rows.setdefault(item.slot, [])
            assert item.start_position <= len(read)
            del read[item.start_position :]
            assert read == [self.cache[item.slot][position + 1] for position in range(len(read))]
            read += item.next_token_ids[: item.num_accepted + 1].tolist()
            bonus = int(item.next_token_ids[item.num_accepted])
            logits[index] = self.draft_logits[:draft_tokens, bonus]
        return DraftOutput(token_ids=logits.argmax(-1).astype(np.int32), logits=logits)

    def preload(self) -> None:
        """Nothing is loaded late."""

    def close(self) -> None:
        self.cache.clear()


class SequentialMarkovEngine(MarkovEngine):
    """The same with a plain EAGLE-3 head, whose next token depends on the two tokens before it.

    The drafter's state is the token before the last; a pass that continues from another position than the cache's end
    is refused.
    """

    def __init__(self, *, seed: int = 0, agreement: float = 0.7, **limits: int) -> None:
        super().__init__(seed=seed, agreement=agreement, **limits)
        noise = np.random.default_rng(seed + 1).standard_normal(self.target_logits.shape).astype(np.float32) * 1.5
        self.pair_logits = agreement * self.target_logits + (1 - agreement) * noise
        self.drafter = msgspec.structs.replace(self.drafter, is_parallel=False, mask_token_id=-1)
        self.num_passes = 0

    def run_drafter(self, rows: Sequence[DraftRows], draft_tokens: int) -> DraftOutput:
        assert draft_tokens == 1
        for item in rows:
            read = self.drafter_rows[item.slot]
            assert item.start_position == len(read)
            read += item.next_token_ids[: item.num_accepted + 1].tolist()
        self.draft_ends = {item.slot: item.start_position + item.num_accepted + 1 for item in rows}
        return self._pass(
            [(self.cache[i.slot][self.draft_ends[i.slot] - 1], int(i.next_token_ids[i.num_accepted])) for i in rows]
        )

    def step_drafter(self, rows: Sequence[DraftStep]) -> DraftOutput:
        for item in rows:
            assert item.position == self.draft_ends[item.slot] < self.shapes.cache_capacity
            self.draft_ends[item.slot] += 1
        return self._pass([(int(item.hidden[0]), item.token_id) for item in rows])

    def _pass(self, pairs: Sequence[tuple[int, int]]) -> DraftOutput:
        self.num_passes += 1
        logits = np.stack([self.pair_logits[pair] for pair in pairs])[:, None]
        states = np.array([[token] for _, token in pairs], np.float32)
        return DraftOutput(token_ids=logits.argmax(-1).astype(np.int32), logits=logits, next_hidden=states)
