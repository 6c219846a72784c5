from __future__ import annotations

import numpy as np
import pytest
import torch

from peagle_trt.train.loss import distillation_loss


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("num_rows", [1, 7, 300, 513])
def test_the_loss_is_the_divergence_that_numpy_computes(num_rows: int) -> None:
    torch.manual_seed(num_rows)
    drafted, target, head = torch.randn(num_rows, 16), torch.randn(40, 16), torch.randn(50, 16)
    indices = torch.randint(40, (num_rows,))
    parts = distillation_loss(drafted, target, indices, head)
    wanted = log_softmax(target.double().numpy() @ head.double().numpy().T)[indices.numpy()]
    found = log_softmax(drafted.double().numpy() @ head.double().numpy().T)
    divergence = (np.exp(wanted) * (wanted - found)).sum(axis=-1)
    np.testing.assert_allclose(parts.loss_S.numpy(), divergence, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(parts.agrees_S.numpy(), wanted.argmax(-1) == found.argmax(-1))


def test_the_gradient_is_the_one_that_autograd_finds() -> None:
    torch.manual_seed(5)
    drafted = torch.randn(270, 16, requires_grad=True)
    target, head, indices = torch.randn(9, 16), torch.randn(50, 16), torch.randint(9, (270,))
    weights = torch.rand(270)
    (3.0 * (weights * distillation_loss(drafted, target, indices, head).loss_S).sum()).backward()
    found = drafted.grad
    drafted.grad = None
    wanted = (target @ head.T).log_softmax(-1)[indices]
    divergence = (wanted.exp() * (wanted - (drafted @ head.T).log_softmax(-1))).sum(-1)
    (3.0 * (weights * divergence).sum()).backward()
    torch.testing.assert_close(found, drafted.grad, atol=1e-5, rtol=1e-4)
