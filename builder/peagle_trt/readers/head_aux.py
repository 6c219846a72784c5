"""Which of the target's residual streams a head reads, whatever way its file counts them."""

from __future__ import annotations

import logging

from peagle_trt.errors import CheckpointError
from peagle_trt.readers.dialects import Dialect
from peagle_trt.readers.json_file import Fields
from peagle_trt.readers.ranges import LAYER_ID
from peagle_trt.spec.drafter import AuxNumbering
from peagle_trt.spec.target import default_aux_layer_ids

logger = logging.getLogger(__name__)

_KEY = "eagle_aux_hidden_state_layer_ids"
_ANGELSLIM_KEY = "aux_hidden_states_layer_ids"


def read_aux_layers(
    fields: Fields, dialect: Dialect, num_target_layers: int | None
) -> tuple[tuple[int, ...], AuxNumbering]:
    """The streams by the layer they enter, and how the file counted them.

    Args:
        fields: The head's config.json.
        dialect: Its spelling, which settles whether numbers mean a layer's input or its output.
        num_target_layers: Layers of the target, for the default of a head that names none.

    Raises:
        CheckpointError: It names none, and the target is not known either.

    Source: vLLM counts inputs; SGLang, SpecForge, Model-Optimizer and AngelSlim count outputs, one less for the same
        stream.
    """
    # vLLM reads this one, whatever else stands beside it, so AngelSlim's own key comes second.
    eagle = fields.section("eagle_config")
    stated = fields.integers(_KEY, within=LAYER_ID) or eagle.integers(_KEY, within=LAYER_ID)
    counts: AuxNumbering = dialect.counts
    if fields.has(_ANGELSLIM_KEY):
        counts = "inputs" if stated else "outputs"
        stated = stated or fields.integers(_ANGELSLIM_KEY, within=LAYER_ID)
    if stated:
        return tuple(layer + (counts == "outputs") for layer in stated), counts
    if num_target_layers is None:
        raise CheckpointError(
            f"`{fields.source}` does not name the target's layers that feed it",
            hint=f"give the target too, or add `{_KEY}`",
        )
    default = default_aux_layer_ids(num_target_layers)
    logger.warning("`%s` does not name its auxiliary layers; taking the usual %s", fields.source, default)
    return default, "not said"


def check_fusion_width(fields: Fields, aux_layer_ids: tuple[int, ...], fc_width: int, target_hidden_size: int) -> None:
    """Refuse numbers of layers that `fc` was not made for.

    Raises:
        CheckpointError: `fc` reads another number of states.
    """
    if len(aux_layer_ids) * target_hidden_size == fc_width:
        return
    states, rest = divmod(fc_width, target_hidden_size)
    if rest:
        raise CheckpointError(
            f"`{fields.source}`: `fc` reads {fc_width} columns, no whole number of states of {target_hidden_size}",
            hint="`target_hidden_size` names the width of the target's states where it is not the head's own",
        )
    raise CheckpointError(
        f"`{fields.source}`: `fc` reads {states} state(s) of {target_hidden_size}, "
        f"but {len(aux_layer_ids)} auxiliary layer(s) are named: {list(aux_layer_ids)}",
        hint=f"name {states} layers in `{_KEY}`; some trainers add the last layer, which `fc` does not read",
    )
