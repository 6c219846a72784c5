"""What the served model `peagle` says about itself on the server's metrics port, beside Triton's own metrics."""

from __future__ import annotations

from peagle_trt.metrics.families import SECONDS, TOKEN_SECONDS, Family

FAMILIES = (
    Family(
        name="peagle_engine_steps_total",
        kind="counter",
        text="Steps of the decode loop; requests in flight share them",
    ),
    Family(name="peagle_drafter_passes_total", kind="counter", text="Forward passes of the drafter"),
    Family(
        name="peagle_verify_steps_total",
        kind="counter",
        text="Verify steps of finished answers, counted once for every request in a step",
    ),
    Family(
        name="peagle_draft_tokens_total", kind="counter", text="Draft tokens that were verified for finished answers"
    ),
    Family(
        name="peagle_accepted_draft_tokens_total",
        kind="counter",
        text="Draft tokens that were accepted in finished answers",
    ),
    Family(
        name="peagle_looked_up_tokens_total",
        kind="counter",
        text="Accepted draft tokens of finished answers that were copied from the text and not the drafter's",
    ),
    Family(
        name="peagle_accepted_by_position_total",
        kind="counter",
        text="Accepted draft tokens of finished answers by their place among the drafts, from 1",
        labels=("position",),
    ),
    Family(name="peagle_input_tokens_total", kind="counter", text="Prompt tokens of finished answers"),
    Family(
        name="peagle_reused_input_tokens_total", kind="counter", text="Prompt tokens that a slot's cache still held"
    ),
    Family(name="peagle_output_tokens_total", kind="counter", text="Tokens of finished answers"),
    Family(
        name="peagle_generated_tokens_total", kind="counter", text="Tokens generated, those of running answers included"
    ),
    Family(name="peagle_requests_total", kind="counter", text="Answers that ended, cancelled and failed ones included"),
    Family(name="peagle_cancelled_requests_total", kind="counter", text="Answers that ended because the client left"),
    Family(
        name="peagle_failed_requests_total",
        kind="counter",
        text="Answers that ended in an error after the engine had taken the request",
    ),
    Family(name="peagle_running_requests", kind="gauge", text="Requests that have a slot of the engine"),
    Family(name="peagle_waiting_requests", kind="gauge", text="Requests that wait for a slot"),
    Family(name="peagle_slots", kind="gauge", text="Requests that can run at once"),
    Family(
        name="peagle_speculation_on",
        kind="gauge",
        text="1 while at least one running answer has drafts made for it, 0 while none has",
    ),
    Family(
        name="peagle_draft_tokens_in_use",
        kind="gauge",
        text="K in use: draft tokens a step, averaged over the answers that have drafts made for them",
    ),
    Family(name="peagle_cache_used_tokens", kind="gauge", text="Tokens that running requests hold in the cache"),
    Family(name="peagle_cache_capacity_tokens", kind="gauge", text="Tokens that the cache has room for"),
    Family(
        name="peagle_time_to_first_token_seconds",
        kind="histogram",
        text="From a request's arrival to its first token",
        buckets=SECONDS,
    ),
    Family(
        name="peagle_inter_token_seconds",
        kind="histogram",
        text="Mean time between the tokens of an answer after its first one; one value an answer",
        buckets=TOKEN_SECONDS,
    ),
    Family(
        name="peagle_request_seconds",
        kind="histogram",
        text="From a request's arrival to its last token",
        buckets=SECONDS,
    ),
)
