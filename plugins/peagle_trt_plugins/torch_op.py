"""torch custom operators `peagle::parallel_draft`, `peagle::select_draft` and `peagle::select_draft_top_k`.

On a CPU they are plain torch; on CUDA they launch the Triton kernels. Each has a fake, so that `torch.compile` and
`torch.export` see through them. Letters as in contract.py and contract_select_draft.py.
"""

from __future__ import annotations

import functools

PARALLEL_DRAFT_SCHEMA = (
    "(Tensor next_token_ids, Tensor fused_hidden, Tensor num_accepted, Tensor start_positions, Tensor mask_token_ids, "
    "Tensor embedding, Tensor fused_mask_hidden, Tensor embedding_norm_weight, Tensor hidden_norm_weight, *, "
    "float epsilon, bool norm_before_residual) -> (Tensor, Tensor, Tensor, Tensor)"
)
SELECT_DRAFT_SCHEMA = "(Tensor hidden, Tensor sample_rows, Tensor lm_head, Tensor draft_to_target) -> Tensor"
SELECT_DRAFT_TOP_K_SCHEMA = (
    "(Tensor hidden, Tensor sample_rows, Tensor lm_head, Tensor draft_to_target, Tensor temperature, *, "
    "SymInt candidates) -> (Tensor, Tensor)"
)


@functools.cache
def register_torch_ops() -> None:
    """Make `torch.ops.peagle.*` callable; a second call does nothing."""
    from torch.library import custom_op

    from peagle_trt_plugins import torch_forms, triton_launch

    ops = (
        ("parallel_draft", PARALLEL_DRAFT_SCHEMA),
        ("select_draft", SELECT_DRAFT_SCHEMA),
        ("select_draft_top_k", SELECT_DRAFT_TOP_K_SCHEMA),
    )
    for name, schema in ops:
        plain = getattr(torch_forms, name)
        op = custom_op(f"peagle::{name}", plain, mutates_args=(), device_types="cpu", schema=schema)
        op.register_kernel("cuda")(getattr(triton_launch, name))
        op.register_fake(getattr(torch_forms, f"fake_{name}"))
