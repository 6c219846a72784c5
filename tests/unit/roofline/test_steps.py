"""Times of steps: against arithmetic by hand, and how they move."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec.structs
import pytest

from peagle_trt.roofline import (
    Constant,
    Device,
    Geometry,
    Load,
    WeightFormats,
    eagle3_step,
    find_device,
    find_pair,
    list_devices,
    p_eagle_step,
    plain_step,
)
from peagle_trt.roofline.steps import drafter_pass, verify_pass

BF16 = WeightFormats(attention="bf16", feed_forward="bf16", head="bf16", drafter="bf16", drafter_head="bf16")
LOAD = Load(batch_size=3, context_tokens=100, formats=BF16, cache_format="bf16")
# Powers of two, so that each term shows in the sum.
MODEL = Geometry(
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    output_rows=256,
    max_positions=1024,
)
HEAD = msgspec.structs.replace(MODEL, num_layers=1, fused_size=192)


def device(**changes: object) -> Device:
    """One byte and one operation a second, nothing fixed."""
    one, none = Constant(value=1, source="a test"), Constant(value=0, source="a test")
    plain = Device(
        name="test",
        title="test",
        memory_bytes=one,
        bandwidth_bytes_per_second=one,
        operations_per_second=dict.fromkeys(("fp32", "bf16", "fp8", "nvfp4", "mxfp4"), one),
        overlaps=False,
        bandwidth_efficiency=one,
        compute_efficiency=one,
        layer_overhead_seconds=none,
        step_overhead_seconds=none,
        request_overhead_seconds=none,
        host_pass_seconds=none,
    )
    return msgspec.structs.replace(plain, **changes)


def constant(value: float) -> Constant:
    return Constant(value=value, source="a test")


def test_a_verify_pass_is_the_sum_of_its_matrices_caches_and_logits() -> None:
    rows, layers, draft_tokens = 3 * 3, 2, 2
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128
    weights = layers * layer + 256 * 64
    cached = 3 * layers * (100 + 3) * 2 * 32
    found = verify_pass(device(), MODEL, LOAD, draft_tokens=draft_tokens)
    assert found.memory_seconds == 2 * weights + 2 * cached + 4 * rows * 256
    # Two operations an element and row; scores and values are another four for each of 64 elements and 100 tokens.
    assert found.compute_seconds == 2 * rows * weights + 4 * rows * layers * 100 * 64


def test_a_drafter_pass_reads_fc_and_a_wide_first_layer_only_where_it_reads_the_target() -> None:
    first = drafter_pass(device(), HEAD, LOAD, rows_each=4, sampled_each=2, reads_target=True)
    later = drafter_pass(device(), HEAD, LOAD, rows_each=4, sampled_each=2, reads_target=False)
    layer = 2 * 64 * 64 + 2 * 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128
    cached = 3 * (100 + 4) * 2 * 32
    assert later.memory_seconds == 2 * (layer + 256 * 64) + 2 * cached + 4 * 3 * 2 * 256
    assert first.memory_seconds - later.memory_seconds == 2 * 64 * 192
    assert first.compute_seconds - later.compute_seconds == 2 * 3 * 4 * 64 * 192


def test_a_parallel_step_drafts_in_one_pass_of_twice_k_rows() -> None:
    step = p_eagle_step(device(), MODEL, HEAD, LOAD, 5)
    assert step.draft == drafter_pass(device(), HEAD, LOAD, rows_each=10, sampled_each=5, reads_target=True)
    assert step.verify == verify_pass(device(), MODEL, LOAD, draft_tokens=5)


def test_a_sequential_step_drafts_in_k_passes() -> None:
    costly = device(layer_overhead_seconds=constant(1e9))
    parallel, sequential = (make(costly, MODEL, HEAD, LOAD, 5) for make in (p_eagle_step, eagle3_step))
    assert parallel.draft.launch_seconds == 1e9
    assert sequential.draft.launch_seconds == 5e9


def test_fixed_costs_are_counted_by_layer_step_and_request() -> None:
    costly = device(
        layer_overhead_seconds=constant(1000),
        step_overhead_seconds=constant(20),
        request_overhead_seconds=constant(3),
    )
    step = p_eagle_step(costly, MODEL, HEAD, LOAD, 2)
    assert step.verify.launch_seconds + step.draft.launch_seconds == 3000
    assert step.overhead_seconds == 20 + 3 * 3


def test_the_host_counts_where_the_device_is_done_sooner() -> None:
    slow_host = device(host_pass_seconds=constant(1e12))
    step = p_eagle_step(slow_host, MODEL, HEAD, LOAD, 2)
    assert (step.seconds, step.bound) == (2e12, "launch")
    assert eagle3_step(slow_host, MODEL, HEAD, LOAD, 4).seconds == 5e12
    quick_host = p_eagle_step(device(host_pass_seconds=constant(1)), MODEL, HEAD, LOAD, 2)
    assert quick_host.seconds == quick_host.device_seconds


def test_the_longer_of_memory_and_arithmetic_counts_where_they_overlap() -> None:
    adding = plain_step(device(), MODEL, LOAD).verify
    overlapping = plain_step(device(overlaps=True), MODEL, LOAD).verify
    assert max(adding.memory_seconds, adding.compute_seconds) <= overlapping.seconds < adding.seconds


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({"bandwidth_bytes_per_second": constant(1e-6)}, "bandwidth"),
        ({"compute_efficiency": constant(1e-6)}, "compute"),
        ({"layer_overhead_seconds": constant(1e9)}, "launch"),
    ],
)
def test_a_step_says_what_bounds_it(changes: dict[str, Constant], bound: str) -> None:
    assert p_eagle_step(device(**changes), MODEL, HEAD, LOAD, 3).bound == bound


def test_twice_the_bandwidth_halves_the_time_of_memory() -> None:
    slow = plain_step(device(), MODEL, LOAD).verify
    fast = plain_step(device(bandwidth_bytes_per_second=constant(2)), MODEL, LOAD).verify
    assert fast.memory_seconds == slow.memory_seconds / 2
    assert fast.compute_seconds == slow.compute_seconds


def test_a_stored_format_is_multiplied_in_what_the_device_says() -> None:
    rates = {"fp32": constant(1), "bf16": constant(4), "fp8": constant(8)}
    two = device(operations_per_second=rates, computes_in={"mxfp4": "bf16", "nvfp4": "fp8"})
    assert [two.compute_seconds(64, name) for name in ("fp32", "bf16", "mxfp4", "nvfp4")] == [64, 16, 16, 8]


@pytest.mark.parametrize("name", [each.name for each in list_devices()])
@pytest.mark.parametrize("pair_name", ["gpt-oss-120b", "smollm2-135m"])
def test_more_work_takes_longer(name: str, pair_name: str) -> None:
    found, pair = find_device(name), find_pair(pair_name)
    load = Load(batch_size=4, context_tokens=500, formats=pair.formats, cache_format="bf16")
    loads = [load, replace(load, batch_size=8), replace(load, context_tokens=5000), replace(load, cache_format="fp32")]
    base, *more = [p_eagle_step(found, pair.target, pair.drafter, each, 4).device_seconds for each in loads]
    assert all(seconds > base for seconds in more)
    times = [p_eagle_step(found, pair.target, pair.drafter, load, count).device_seconds for count in range(1, 17)]
    assert all(later > earlier for earlier, later in itertools.pairwise(times))
    assert plain_step(found, pair.target, load).device_seconds < times[0]


def test_narrower_weights_take_less_time_where_memory_bounds() -> None:
    pair, found = find_pair("qwen3-coder-30b-a3b"), find_device("b200")
    narrow = WeightFormats(attention="fp8", feed_forward="fp8", head="bf16", drafter="bf16", drafter_head="bf16")
    loads = [Load(batch_size=8, context_tokens=500, formats=each, cache_format="bf16") for each in (BF16, narrow)]
    wide_seconds, narrow_seconds = (plain_step(found, pair.target, load).seconds for load in loads)
    assert narrow_seconds < wide_seconds


def test_favourite_experts_are_read_once() -> None:
    pair, found = find_pair("gpt-oss-120b"), find_device("b200")
    load = Load(batch_size=8, context_tokens=500, formats=pair.formats, cache_format="bf16")
    equal, favourites = (plain_step(found, pair.target, each) for each in (load, replace(load, routing_spread=2.0)))
    assert favourites.verify.memory_seconds < equal.verify.memory_seconds
