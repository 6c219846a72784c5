"""What each TensorRT plugin is, without TensorRT: its contract, what it makes of sizes, and which kernel it launches.

tensorrt_plugin.py hands these to TensorRT. Sizes are TensorRT's expressions there and integers in tests; what a
constant must hold, such as the hidden size, has to be known when the engine is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from peagle_trt_plugins import contract, contract_select_stages
from peagle_trt_plugins.kernel_launches import (
    Dimension,
    Launch,
    draft_width,
    launch_merge_best,
    launch_merge_candidates,
    launch_parallel_draft,
    launch_select_blocks,
    num_entries,
)
from peagle_trt_plugins.kernel_variants import (
    SELECT_TACTICS,
    Cut,
    KernelVariant,
    merge_best_variant,
    merge_candidates_variant,
    parallel_draft_variant,
    plugin_cut,
    product_element,
    row_warps,
    select_blocks_variant,
)
from peagle_trt_plugins.ports import Attribute, Port

Sizes = dict[str, Dimension]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCall:
    """One node as TensorRT describes it.

    Attributes:
        sizes: By the contract's letter, of the inputs.
        known: Those that are numbers already.
        elements: By port, as Triton names them.
        attributes: By name.
    """

    sizes: Sizes
    known: dict[str, int]
    elements: dict[str, str]
    attributes: Mapping[str, float]

    def integer(self, name: str) -> int:
        """An attribute that counts."""
        return int(self.attributes[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginForm:
    """One plugin.

    Attributes:
        name: Its name in the domain `peagle`.
        inputs: Ports, in the kernel's order.
        outputs: Ports, in the kernel's order.
        attributes: Of the contract; `contract_version` is added to them.
        needs: Letters whose sizes the build must know.
        derive: Sizes that only outputs have.
        tactics: What TensorRT may choose from by time; 0 is what a plugin does unasked.
        plan: The kernel and its launch under a tactic.
    """

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    attributes: tuple[Attribute, ...]
    needs: tuple[str, ...]
    derive: Callable[[PluginCall], Sizes]
    tactics: Callable[[PluginCall], tuple[int, ...]]
    plan: Callable[[PluginCall, int], tuple[KernelVariant, Launch[Any]]]


def _derive_draft(call: PluginCall) -> Sizes:
    return {"W": draft_width(call.sizes["R"], call.sizes["K"]), "2H": call.sizes["H"] * 2}


def _draft_tactics(call: PluginCall) -> tuple[int, ...]:
    """Warps of a program: half as many numbers to a thread may hide memory's latency better."""
    warps = row_warps(call.known["H"])
    return (warps, 2 * warps)


def _plan_draft(call: PluginCall, tactic: int) -> tuple[KernelVariant, Launch[Any]]:
    variant = parallel_draft_variant(
        call.known["H"],
        call.elements["fused_hidden"],
        call.elements["embedding"],
        epsilon=call.attributes["epsilon"],
        norm_before_residual=bool(call.attributes["norm_before_residual"]),
        num_warps=tactic or None,
    )
    return variant, launch_parallel_draft(call.sizes["B"], call.sizes["R"], call.sizes["K"])


def _cut(call: PluginCall, tactic: int) -> Cut:
    return plugin_cut(tactic, product_element(call.elements["hidden"], call.elements["lm_head"]))


def _derive_blocks(call: PluginCall) -> Sizes:
    # A number where it is one: so the next plugin finds a constant, whatever TensorRT makes of sums of constants.
    num_ids: Dimension = call.known.get("D", call.sizes["D"])
    return {"E": num_entries(num_ids, call.integer("candidates"), _cut(call, 0))}


def _plan_blocks(call: PluginCall, tactic: int) -> tuple[KernelVariant, Launch[Any]]:
    cut, sizes = _cut(call, tactic), call.sizes
    variant = select_blocks_variant(
        call.known["H"],
        call.elements["hidden"],
        call.elements["lm_head"],
        candidates=call.integer("candidates"),
        cut=cut,
    )
    return variant, launch_select_blocks(sizes["B"], sizes["K"], sizes["W"], sizes["D"], cut)


def _plan_best(call: PluginCall, tactic: int) -> tuple[KernelVariant, Launch[Any]]:
    sizes = call.sizes
    return merge_best_variant(call.known["E"]), launch_merge_best(sizes["B"], sizes["K"], sizes["E"])


def _derive_candidates(call: PluginCall) -> Sizes:
    return {"M": call.integer("candidates")}


def _plan_candidates(call: PluginCall, tactic: int) -> tuple[KernelVariant, Launch[Any]]:
    sizes = call.sizes
    variant = merge_candidates_variant(call.known["E"], call.integer("candidates"))
    return variant, launch_merge_candidates(sizes["B"], sizes["K"], sizes["E"])


def _nothing_more(call: PluginCall) -> Sizes:
    return {}


def _no_choice(call: PluginCall) -> tuple[int, ...]:
    return ()


FORMS = (
    PluginForm(
        name=contract.NAME,
        inputs=contract.INPUTS,
        outputs=contract.OUTPUTS,
        attributes=contract.ATTRIBUTES,
        needs=("H",),
        derive=_derive_draft,
        tactics=_draft_tactics,
        plan=_plan_draft,
    ),
    PluginForm(
        name=contract_select_stages.BLOCKS_NAME,
        inputs=contract_select_stages.BLOCKS_INPUTS,
        outputs=contract_select_stages.BLOCKS_OUTPUTS,
        attributes=contract_select_stages.BLOCKS_ATTRIBUTES,
        needs=("H", "D"),
        derive=_derive_blocks,
        tactics=lambda call: SELECT_TACTICS,
        plan=_plan_blocks,
    ),
    PluginForm(
        name=contract_select_stages.BEST_NAME,
        inputs=contract_select_stages.BEST_INPUTS,
        outputs=contract_select_stages.BEST_OUTPUTS,
        attributes=(),
        needs=("E",),
        derive=_nothing_more,
        tactics=_no_choice,
        plan=_plan_best,
    ),
    PluginForm(
        name=contract_select_stages.CANDIDATES_NAME,
        inputs=contract_select_stages.CANDIDATES_INPUTS,
        outputs=contract_select_stages.CANDIDATES_OUTPUTS,
        attributes=contract_select_stages.CANDIDATES_ATTRIBUTES,
        needs=("E",),
        derive=_derive_candidates,
        tactics=_no_choice,
        plan=_plan_candidates,
    ),
)
