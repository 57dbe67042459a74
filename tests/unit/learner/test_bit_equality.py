"""Observed loops train exactly like the same loops alone, over loops drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from oven_learner.custom_loop import connect
from oven_learner.testing import FakeLink

STEPS = 6
CLIP = 0.3
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda groups, foreach: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=5e-4, foreach=foreach),
    "adam": lambda groups, foreach: torch.optim.Adam(groups, lr=0.01, foreach=foreach),
    "adamw": lambda groups, foreach: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1, foreach=foreach),
    "rmsprop": lambda groups, foreach: torch.optim.RMSprop(groups, lr=0.003, foreach=foreach),
    "lbfgs": lambda groups, _: torch.optim.LBFGS([p for group in groups for p in group["params"]], lr=0.1, max_iter=3),
}
SCHEDULERS: dict[str, Any] = {
    "none": lambda _: None,
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=STEPS + 1),
    "step": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
}


def drawn(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    optimizer = draw.choice(list(OPTIMIZERS))
    return {
        "optimizer": optimizer,
        "groups": draw.choice(["one", "reversed", "decay first"]) if optimizer != "lbfgs" else "one",
        "clip": draw.choice(["none", "connect", "connect", "own"]),
        "scheduler": draw.choice(list(SCHEDULERS)) if optimizer != "lbfgs" else "none",
        "passed": draw.random() < 0.5,
        "accumulation": draw.choice([1, 3]),
        "ema": draw.random() < 0.5,
        "autocast": draw.random() < 0.5,
        "foreach": draw.choice([None, False, True]),
        "optimizers": draw.choice([1, 2]),
        "float64": draw.random() < 0.5,
        "evaluates": draw.random() < 0.3,
        "all optimizers": draw.random() < 0.5,
    }


class Net(torch.nn.Module):
    def __init__(self, float64: bool) -> None:
        super().__init__()
        widths = [6, 16, 24, 16, 1]
        linears = [torch.nn.Linear(a, b) for a, b in pairwise(widths)]
        self.layers = torch.nn.ModuleList(linears)
        self.dtypes = [torch.float64 if float64 and n == 1 else torch.float32 for n in range(len(linears))]
        linears[1].to(self.dtypes[1])
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, dtype in zip(self.layers, self.dtypes, strict=True):
            x = torch.tanh(layer(x.to(dtype)).float())
        return x * self.scale


def grouped(parameters: list[torch.nn.Parameter], how: str) -> list[dict[str, Any]]:
    if how == "one":
        return [{"params": parameters}]
    if how == "reversed":
        return [{"params": parameters[::-1]}]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def enumerated(optimizers: list[Any]) -> list[tuple[str, Any]]:
    return [(str(number), optimizer) for number, optimizer in enumerate(optimizers, start=1)]


def trained(how: dict[str, Any], link: FakeLink | None) -> list[torch.Tensor]:
    """Return the weights, those of the moving average, and random numbers after the training. `link=None`: alone."""
    torch.manual_seed(5)
    model = Net(how["float64"])
    parameters = list(model.parameters())
    cut = 3 if how["optimizers"] == 2 else len(parameters)
    make = OPTIMIZERS[how["optimizer"]]
    optimizer = make(grouped(parameters[:cut], how["groups"]), how["foreach"])
    optimizers = [optimizer] + ([torch.optim.AdamW(parameters[cut:], lr=0.01)] if parameters[cut:] else [])
    scheduler = SCHEDULERS[how["scheduler"]](optimizer)
    average = AveragedModel(model)
    after: list[Callable[[], object]] = [extra.step for extra in optimizers[1:]]
    after += [scheduler.step] if scheduler is not None else []
    after += [lambda: average.update_parameters(model)] if how["ema"] else []
    client = None
    if link is not None:
        passed_scheduler = scheduler if how["passed"] else None
        passes_all = how["all optimizers"]
        client = connect(
            model=model,
            optimizer=dict(enumerated(optimizers)) if passes_all else optimizer,
            scheduler={"1": passed_scheduler} if passes_all else passed_scheduler,
            clip=CLIP if how["clip"] == "connect" else None,
            evaluate=(lambda: {"eval/loss": float(torch.rand(()))}) if how["evaluates"] else None,
            evaluate_every=2,
            link=link,
        )
    clips = how["clip"] == "own" or (how["clip"] == "connect" and client is None)
    for step in range(1, STEPS + 1):
        batches = [torch.randn(8, 6) for _ in range(how["accumulation"])]

        def closure(batches: list[torch.Tensor] = batches) -> torch.Tensor:
            for each in optimizers:
                each.zero_grad()
            total = torch.zeros(())
            for x in batches:
                with torch.autocast("cpu", torch.bfloat16, enabled=how["autocast"]):
                    loss = (model(x) - 3 * x.sum(1, keepdim=True)).square().mean() / len(batches)
                loss.backward()
                total += loss.detach()
            if clips:
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            return total

        if how["optimizer"] == "lbfgs":
            loss = optimizer.step(closure)
        else:
            loss = closure()
            optimizer.step()
        for call in after:
            call()
        if client is not None:
            client.observe(step, {"loss": float(loss)})
            client.poll()
    if client is not None:
        client.close()
    return [*model.parameters(), *average.parameters(), torch.randn(3)]


@pytest.mark.parametrize("seed", range(30))
def test_an_observed_loop_trains_bit_for_bit_as_alone(seed: int) -> None:
    how, link = drawn(seed), FakeLink()
    alone, observed = trained(how, None), trained(how, link)
    assert all(torch.equal(a, b) for a, b in zip(alone, observed, strict=True)), how
    assert len(link.observed()) == STEPS + how["evaluates"]


def test_clip_counts_the_gradients_of_weights_that_the_optimizer_lacks() -> None:
    def clipped(connected: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        client = connect(model=model, optimizer=optimizer, clip=CLIP, link=FakeLink()) if connected else None
        model(torch.randn(5, 3)).square().sum().backward()
        model[0].requires_grad_(False)
        if client is None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return [p.detach() for p in model.parameters()] + [p.grad for p in model.parameters() if p.grad is not None]

    assert all(map(torch.equal, clipped(connected=False), clipped(connected=True)))
