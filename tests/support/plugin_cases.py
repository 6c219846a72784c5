"""Cases that every form of the plugins must agree on, and how far apart they may be.

Whatever a form must not read is poisoned: hidden states behind the accepted drafts are NaN and their tokens lie far
outside the vocabulary, and rows that are not sampled are NaN.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from peagle_trt_plugins.reference import parallel_draft
from peagle_trt_plugins.reference_select_draft import select_draft, select_draft_top_k

Arrays = dict[str, np.ndarray]

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
EPSILON = 1e-5

# Largest difference from the reference, relative to the value and absolute.
TOLERANCES = {
    # Sums of up to 8192 squares in another order.
    "float32": 2e-6,
    # ONNX rounds the normalised value before it multiplies by the weight, the others once: two units of 2**-11.
    "float16": 1.1e-3,
    # One rounding to 8 bits, which a sum in another order can tip the other way.
    "bfloat16": 8e-3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCase:
    """One call of `ParallelDraft`."""

    batch: int
    rows: int
    slots: int
    hidden: int
    dtype: str = "float32"
    table_dtype: str | None = None
    vocabulary: int = 50
    accepted: str = "between"
    norm_before_residual: bool = False

    def __str__(self) -> str:
        kinds = "-".join(
            [self.dtype, *([self.table_dtype] if self.table_dtype else []), self.accepted]
            + ["normed"] * self.norm_before_residual
        )
        return f"B{self.batch}-R{self.rows}-K{self.slots}-H{self.hidden}-V{self.vocabulary}-{kinds}"

    def inputs(self) -> Arrays:
        rng = np.random.default_rng([self.batch, self.rows, self.slots, self.hidden])
        real, table = DTYPES[self.dtype], DTYPES[self.table_dtype or self.dtype]
        accepted = {
            "none": np.zeros(self.batch),
            "all": np.full(self.batch, self.rows - 1),
            "between": rng.integers(0, self.rows, self.batch),
            "every": np.arange(self.batch) % self.rows,
        }[self.accepted]
        tokens = rng.integers(0, self.vocabulary, (self.batch, self.rows))
        tokens[0, 0] = self.vocabulary - 1
        hidden = rng.standard_normal((self.batch, self.rows, self.hidden)).astype(real)
        is_rejected = np.arange(self.rows)[None, :] > accepted[:, None]
        hidden[is_rejected] = np.nan
        tokens[is_rejected] = 2**31 - 1
        return {
            "next_token_ids": tokens.astype(np.int32),
            "fused_hidden": hidden,
            "num_accepted": accepted.astype(np.int32),
            "start_positions": rng.integers(0, 100_000, self.batch).astype(np.int32),
            "mask_token_ids": np.full(self.slots, self.vocabulary - 1, np.int32),
            "embedding": rng.standard_normal((self.vocabulary, self.hidden), np.float32).astype(table),
            "fused_mask_hidden": rng.standard_normal(self.hidden).astype(real),
            "embedding_norm_weight": rng.standard_normal(self.hidden).astype(real),
            "hidden_norm_weight": rng.standard_normal(self.hidden).astype(real),
        }

    def attributes(self) -> dict[str, float | bool]:
        return {"epsilon": EPSILON, "norm_before_residual": self.norm_before_residual}

    def expected(self) -> tuple[np.ndarray, ...]:
        return parallel_draft(*self.inputs().values(), epsilon=EPSILON, norm_before_residual=self.norm_before_residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectCase:
    """One call of `SelectDraft` or, where `candidates` is above 0, of `SelectDraftTopK`.

    All values are small whole numbers, so that every order of adding up gives the same logits, and many are equal.
    """

    batch: int
    slots: int
    hidden: int
    vocabulary: int
    dtype: str = "float32"
    table_dtype: str | None = None
    candidates: int = 0
    damage: str = ""

    def __str__(self) -> str:
        kinds = "-".join([self.dtype] + [word for word in (self.table_dtype, self.damage) if word])
        return f"B{self.batch}-K{self.slots}-H{self.hidden}-D{self.vocabulary}-M{self.candidates}-{kinds}"

    def inputs(self) -> Arrays:
        rng = np.random.default_rng([self.batch, self.slots, self.hidden, self.vocabulary])
        real, table = DTYPES[self.dtype], DTYPES[self.table_dtype or self.dtype]
        width = 2 * self.slots
        first = rng.integers(0, width - self.slots + 1, self.batch)
        sample_rows = first[:, None] + np.arange(self.slots)
        hidden = np.full((self.batch, width, self.hidden), np.nan)
        sampled = rng.integers(-2, 3, (self.batch, self.slots, self.hidden))
        np.put_along_axis(hidden, sample_rows[:, :, None], sampled, axis=1)
        lm_head = rng.integers(-2, 3, (self.vocabulary, self.hidden)).astype(table)
        if self.damage == "all below zero":
            # What a kernel reads beyond the vocabulary is 0, which must not win.
            hidden, lm_head = np.abs(hidden) + 1, -np.abs(lm_head) - 1
        if self.damage == "a row of NaN":
            hidden[0, sample_rows[0, 0]] = np.nan
        if self.damage == "weights of NaN and infinity":
            lm_head[self.vocabulary // 3] = np.nan
            lm_head[self.vocabulary // 2, 0] = np.inf
            lm_head[self.vocabulary // 2 + 1, 1] = -np.inf
        inputs = {
            "hidden": hidden.astype(real),
            "sample_rows": sample_rows.astype(np.int32),
            "lm_head": lm_head,
            "draft_to_target": np.sort(rng.choice(4 * self.vocabulary, self.vocabulary, replace=False)),
        }
        if self.candidates:
            inputs["temperature"] = rng.uniform(0.1, 8, self.batch).astype(np.float32)
        return inputs

    def attributes(self) -> dict[str, int]:
        return {"candidates": self.candidates} if self.candidates else {}

    def expected(self) -> tuple[np.ndarray, ...]:
        if self.candidates:
            return select_draft_top_k(*self.inputs().values(), candidates=self.candidates)
        return (select_draft(*self.inputs().values()),)


def _draft(batch: int, slots: int, hidden: int, rows: int | None = None, **settings: object) -> DraftCase:
    return DraftCase(batch=batch, rows=rows or slots + 1, slots=slots, hidden=hidden, **settings)  # type: ignore[arg-type]


def _select(batch: int, slots: int, hidden: int, vocabulary: int, **settings: object) -> SelectCase:
    return SelectCase(batch=batch, slots=slots, hidden=hidden, vocabulary=vocabulary, **settings)  # type: ignore[arg-type]


DRAFT_CASES = (
    *(
        _draft(batch, slots, hidden, dtype=dtype, accepted=accepted, norm_before_residual=accepted == "between")
        for dtype in DTYPES
        for accepted in ("none", "all", "between")
        for batch, slots, hidden in ((1, 1, 576), (3, 5, 577), (2, 16, 96))
    ),
    *(_draft(batch, 3, 64) for batch in (4, 7, 64)),
    *(_draft(2, slots, 40, accepted="between") for slots in range(1, 17)),
    *(_draft(2, 3, hidden, dtype="float16") for hidden in (2880, 8192)),
    *(_draft(slots + 1, slots, 33, dtype="bfloat16", accepted="every") for slots in (1, 7, 16)),
    _draft(2, 5, 48, rows=1),
    _draft(2, 5, 48, rows=17),
    _draft(3, 4, 24, vocabulary=40_000),
    _draft(3, 4, 24, vocabulary=40_000, table_dtype="bfloat16"),
    _draft(3, 4, 24, vocabulary=40_000, dtype="float16", table_dtype="bfloat16"),
)

SELECT_CASES = (
    *(
        _select(batch, slots, hidden, vocabulary, dtype=dtype, candidates=candidates)
        for dtype in DTYPES
        for candidates in (0, 4)
        for batch, slots, hidden, vocabulary in ((1, 1, 576, 130), (3, 5, 77, 1000), (2, 16, 64, 515))
    ),
    *(_select(64, slots, 32, 200, candidates=candidates) for slots, candidates in ((3, 0), (1, 16))),
    *(_select(2, slots, 24, 70, candidates=slots % 3) for slots in range(1, 17)),
    *(_select(1, 2, 32, 33_000, candidates=candidates) for candidates in (0, 2)),
    *(_select(2, 3, 48, 600, table_dtype="bfloat16", candidates=candidates) for candidates in (0, 1)),
    _select(1, 1, 16, 1, candidates=1),
    _select(1, 2, 8192, 40),
    *(
        _select(2, 3, 40, 200, candidates=candidates, damage=damage)
        for candidates in (0, 5)
        for damage in ("a row of NaN", "weights of NaN and infinity", "all below zero")
    ),
)


def sweep() -> tuple[DraftCase | SelectCase, ...]:
    """Every K in every type, with sizes that take turns: batches to 64, hidden sizes to 8192, ids past 16 bits."""
    batches, hiddens, counts = (1, 64, 2, 17, 5), (576, 577, 2880, 1023, 8192, 96, 4096), (0, 1, 16, 2, 0, 7)
    cases: list[DraftCase | SelectCase] = []
    for turn, (dtype, slots) in enumerate(itertools.product(DTYPES, range(1, 17))):
        batch, hidden, candidates = (values[turn % len(values)] for values in (batches, hiddens, counts))
        kinds = {"dtype": dtype, "table_dtype": (None, None, "bfloat16", "float32")[turn // 3 % 4]}
        # A larger table takes longer to make than everything else.
        vocabulary, normed = min((70_000, 257, 1)[turn % 3], 2**26 // hidden), bool(turn % 2)
        draft = {"vocabulary": vocabulary, "accepted": "every", "norm_before_residual": normed}
        cases.append(_draft(batch, slots, hidden, **draft, **kinds))
        # Triton's interpreter takes some milliseconds for a step of a program, of which there are a few thousand.
        vocabulary = 70_000 if batch * slots <= 16 and candidates <= 1 else 1025 if batch < 64 else 130
        programs = -(-batch * slots // 16) * -(-vocabulary // 64)
        hidden = min(hidden, 32 * max(1, 1000 // programs))
        cases.append(_select(batch, slots, hidden, vocabulary, candidates=candidates, **kinds))
    return tuple(cases)


@functools.cache
def expected_of(case: DraftCase | SelectCase) -> tuple[np.ndarray, ...]:
    """The reference's answer, computed once for all forms."""
    return case.expected()


def assert_agrees(case: DraftCase | SelectCase, found: list[np.ndarray]) -> None:
    """Integers must be equal; numbers within the table of tolerances."""
    tolerance = TOLERANCES[case.dtype if isinstance(case, DraftCase) else "float32"]
    for want, got in zip(expected_of(case), found, strict=True):
        if want.dtype.kind == "i":
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got.astype(np.float32), want, rtol=tolerance, atol=tolerance)
