"""Published models, small enough to be filled with numbers and run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def shrink(published: Mapping[str, Any]) -> dict[str, Any]:
    """The same kind of model, small enough to be filled."""
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = dict(published["config"], **sizes, moe_intermediate_size=32, vocab_size=300, num_hidden_layers=2)
    head = dict(published["drafter_config"], **sizes, vocab_size=300, draft_vocab_size=300, ptd_token_id=299)
    tokens = {name: 299 - index for index, name in enumerate(published["special_tokens"])}
    end = tokens[published["eos_token"]]
    config["eos_token_id"] = end
    return dict(
        published, config=config, drafter_config=head, special_tokens=tokens, generation_config={"eos_token_id": [end]}
    )
