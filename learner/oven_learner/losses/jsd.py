"""The generalized Jensen-Shannon divergence between two next-token distributions. Pure."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import kl_div


def generalized_jsd(student: Tensor, teacher: Tensor, beta: float, temperature: float = 1.0) -> Tensor:
    """Per token, in nats, from logits (..., V); the result is (...), float32, with the student's gradient.

    With P the teacher and Q the student, each a softmax of logits / temperature:
    β·KL(P ‖ M) + (1 − β)·KL(Q ‖ M), M = β·P + (1 − β)·Q (Agarwal et al. 2024, arXiv 2306.13649, eq. 1). At the ends,
    where that vanishes, the KL that it tends to when it is rescaled: β = 0 is the forward KL(P ‖ Q), β = 1 the reverse
    KL(Q ‖ P), which seeks a mode of the teacher (Gu et al. 2024, arXiv 2306.08543).
    """
    log_q = _log_probabilities(student, temperature)
    log_p = _log_probabilities(teacher, temperature)
    if beta == 0:
        return _kl(log_p, log_q)
    if beta == 1:
        return _kl(log_q, log_p)
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    return beta * _kl(log_p, log_m) + (1 - beta) * _kl(log_q, log_m)


def _log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Never -inf: a model that masks padded rows gives them no probability, and 0·∞ is not a number."""
    return (logits.float() / temperature).log_softmax(-1).clamp(min=torch.finfo(torch.float32).min)


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(P ‖ Q) over the last dimension."""
    return kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
