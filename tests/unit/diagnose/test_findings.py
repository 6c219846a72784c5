"""Reasons from numbers."""

from __future__ import annotations

import pytest

from peagle_trt.diagnose import Acceptance, Finding, Variant, explain
from peagle_trt.diagnose.variants import PUBLISHED
from peagle_trt.spec import DrafterConfig, RopeConfig

CONFIG = DrafterConfig(
    dialect="test",
    hidden_size=8,
    target_hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    vocab_size=16,
    draft_vocab_size=16,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    max_positions=64,
    mask_token_id=3,
    aux_layer_ids=(1, 2, 3),
)
VARIANTS = {name: Variant(name=name, config=CONFIG, remedy=f"do {name}") for name in (PUBLISHED, "other")}


def found(*accepted: int) -> Acceptance:
    return Acceptance(num_steps=100, accepted_by_position=accepted)


# 0.16 drafts a step less than the other reading, at a standard error of 0.18.
NOISY = Acceptance(num_steps=50, accepted_by_position=(27, 19))


def kinds(findings: list[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({PUBLISHED: found(70, 50), "other": found(40, 10)}, ["fine"]),
        ({PUBLISHED: found(20, 5), "other": found(60, 40)}, ["reading"]),
        ({PUBLISHED: found(60, 1), "other": found(60, 2)}, ["mask"]),
        ({PUBLISHED: found(3, 0), "other": found(2, 0)}, ["first-slot"]),
        ({PUBLISHED: found(20, 5), "other": found(20, 5)}, ["poor"]),
        ({PUBLISHED: Acceptance(num_steps=20, accepted_by_position=(0, 0)), "other": found(60, 40)}, ["few"]),
        ({PUBLISHED: NOISY, "other": Acceptance(num_steps=50, accepted_by_position=(30, 24))}, ["fine"]),
    ],
)
def test_numbers_lead_to_their_reason(measured: dict[str, Acceptance], expected: list[str]) -> None:
    assert kinds(explain(VARIANTS, measured, other_format=None)) == expected


def test_prompts_sent_the_wrong_way_are_a_reason() -> None:
    measured = {PUBLISHED: found(40, 10), "other": found(40, 10)}
    findings = explain(VARIANTS, measured, other_format=("without the chat template", found(80, 60)))
    assert kinds(findings) == ["template"]
    assert findings[0].remedy == "send prompts without the chat template"


def test_acceptance_counts_the_bonus_and_conditional_rates() -> None:
    measured = found(50, 25)
    assert measured.length == 1.75
    assert measured.rates == (0.5, 0.25)
    assert measured.last_rates == (0.5, 0.5)
    # Half the steps accept nothing, a quarter one draft, a quarter two: the variance is 0.6875.
    assert measured.length_error == pytest.approx((0.6875 / 100) ** 0.5)
