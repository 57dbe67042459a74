"""Helpers for the tests of `connect`: a small PyTorch loop with any optimizer, and the values that its steps used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oven_learner.client.loop_client import LoopClient
from oven_learner.custom_loop import connect
from oven_learner.testing import FakeLink

STEPS = 12


class Loop:
    """A loop that trains two layers on sums for twelve steps. The hooks in `before` may set rates; `after` steps a
    schedule."""

    def __init__(self, made: Callable[[Any], Any] = lambda p: torch.optim.AdamW(p, lr=0.01), **options: Any) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer = made(self.model.parameters())
        self.options = options
        self.rates: list[float] = []
        self.before: Callable[[int, LoopClient | None], object] = lambda *_: None
        self.after: Callable[[], object] = lambda: None
        self.client: LoopClient | None = None
        self.optimizer.register_step_pre_hook(lambda it, *_: self.rates.append(float(it.param_groups[0]["lr"])))

    def evaluated(self) -> dict[str, float]:
        x = torch.randn(16, 4)  # takes from the random state, as an evaluation may
        with torch.no_grad():
            return {"eval/loss": torch.nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True)).item()}

    def step(self) -> float:
        x = torch.randn(8, 4)
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.after()
        return loss.item()

    def overflow(self) -> None:
        """Overflow a gradient, as a backward pass in float16 can."""
        first = next(self.model.parameters())
        assert first.grad is not None
        first.grad[0] = float("inf")

    def alone(self, steps: int = STEPS) -> None:
        for step in range(1, steps + 1):
            self.before(step, None)
            self.step()

    def run(self, line: FakeLink, steps: int = STEPS) -> FakeLink:
        options: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "max_steps": steps} | self.options
        with connect(link=line, **options) as client:
            self.client = client
            for step in range(1, steps + 1):
                self.before(step, client)
                client.observe(step, {"loss": self.step()})
                client.poll()
        return line

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]
