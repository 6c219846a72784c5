from __future__ import annotations

import pytest
import torch

from peagle_trt.train.loss import distillation_loss
from peagle_trt.train.objectives import HYBRID_RATE, OBJECTIVES, TOP_TOKENS


def softmax(logits: torch.Tensor) -> torch.Tensor:
    shifted = (logits - logits.amax(-1, keepdim=True)).exp()
    return shifted / shifted.sum(-1, keepdim=True)


def expected_loss(name: str, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Each loss as its paper writes it, in terms of probabilities."""
    alpha = torch.minimum(p, q).sum(-1)
    divergence = (p * (p / q).log()).sum(-1)
    if name == "kl":
        return divergence
    if name == "ce":
        return -q.gather(1, p.argmax(-1, keepdim=True)).log()[:, 0]
    if name == "tv":
        return (p - q).abs().sum(-1) / 2
    if name == "nla":
        return -alpha.log()
    if name == "lk":
        share = (-HYBRID_RATE * alpha.detach()).exp()
        return share * divergence + (1 - share) * (1 - alpha)
    kept = p.topk(TOP_TOKENS).indices
    p_bins = torch.cat([p.gather(1, kept), 1 - p.gather(1, kept).sum(-1, keepdim=True)], dim=1)
    q_bins = torch.cat([q.gather(1, kept), 1 - q.gather(1, kept).sum(-1, keepdim=True)], dim=1)
    return (p_bins * (p_bins / q_bins).log()).sum(-1)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_slope_are_those_of_autograd_in_double_precision(name: str) -> None:
    torch.manual_seed(3)
    target = torch.randn(17, 90) * 2
    logits = (torch.randn(17, 90) * 2 + 0.5 * target).requires_grad_()
    exact = logits.detach().double().requires_grad_()
    wanted = expected_loss(name, softmax(target.double()), softmax(exact))
    wanted.sum().backward()
    with torch.no_grad():
        loss, slope = OBJECTIVES[name](target.log_softmax(-1), logits.log_softmax(-1))
    torch.testing.assert_close(loss, wanted.detach().float(), atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(slope, exact.grad.float(), atol=2e-6, rtol=2e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_drafter_that_knows_the_target_has_nothing_to_lose(name: str) -> None:
    torch.manual_seed(4)
    logits = torch.randn(5, 60)
    logits[:, 7] += 40.0
    with torch.no_grad():
        loss, slope = OBJECTIVES[name](logits.log_softmax(-1), logits.log_softmax(-1))
    assert loss.abs().max() < 1e-6
    assert slope.abs().max() < 1e-6


@pytest.mark.parametrize("name", OBJECTIVES)
def test_distributions_that_hardly_overlap_have_finite_losses(name: str) -> None:
    target, draft = torch.zeros(1, 50), torch.zeros(1, 50)
    target[0, 3], draft[0, 9] = 200.0, 200.0
    with torch.no_grad():
        loss, slope = OBJECTIVES[name](target.log_softmax(-1), draft.log_softmax(-1))
    assert loss.isfinite().all()
    assert slope.isfinite().all()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_objective_reaches_the_hidden_rows(name: str) -> None:
    torch.manual_seed(5)
    drafted = torch.randn(200, 16, requires_grad=True)
    target, head, indices, weights = torch.randn(9, 16), torch.randn(50, 16), torch.randint(9, (200,)), torch.rand(200)
    (weights * distillation_loss(drafted, target, indices, head, name).loss_S).sum().backward()
    found = drafted.grad
    drafted.grad = None
    wanted = expected_loss(name, softmax(target @ head.T)[indices], softmax(drafted @ head.T))
    (weights * wanted).sum().backward()
    torch.testing.assert_close(found, drafted.grad, atol=1e-5, rtol=1e-3)
