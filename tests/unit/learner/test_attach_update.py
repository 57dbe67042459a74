"""The norms of weights and updates that attach publishes: what a copy of the weights would say, or nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY, trainer
from transformers import Trainer, TrainerCallback

from oven_core.protocol.messages import RunStarted
from oven_learner.hf.attach import attach
from oven_learner.optim import optimizer_gauges, update_norm
from oven_learner.optim.optimizer_gauges import OptimizerGauges
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

NORM, RATIO = optimizer_gauges.WEIGHT_NORM.name, optimizer_gauges.UPDATE_RATIO.name
Made = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
HOW: dict[str, Made] = {
    "one by one": lambda groups: torch.optim.AdamW(groups, lr=0.1, foreach=False),
    "foreach": lambda groups: torch.optim.AdamW(groups, lr=0.1, foreach=True),
    "fused": lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True),
    "amsgrad": lambda groups: torch.optim.AdamW(groups, lr=0.1, amsgrad=True),
    "maximize": lambda groups: torch.optim.AdamW(groups, lr=0.1, maximize=True),
    "coupled decay": lambda groups: torch.optim.Adam(groups, lr=0.1),
}


def flat(weights: list[torch.nn.Parameter]) -> torch.Tensor:
    return torch.cat([weight.detach().double().flatten() for weight in weights])


def spread(seed: int, dtype: torch.dtype = torch.float64) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((5, 4, 2), (7,), (), (3, 1))
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def pulled(weights: list[torch.nn.Parameter], step: int, leave_out: int) -> None:
    """Gradients of another size for each parameter; one has none."""
    generator = torch.Generator().manual_seed(step)
    for index, weight in enumerate(weights):
        gradient = torch.randn(weight.shape, generator=generator).to(weight.dtype) * 10.0 ** (-3 * index)
        weight.grad = None if index == leave_out else gradient


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("chunk", "on_device"), [(2**24, False), (6, False), (6, True)])
@given(
    decay=st.sampled_from([0.0, 0.01, 3.0]),
    rate=st.floats(1e-6, 0.3),
    left_out=st.lists(st.integers(-1, 2), min_size=1, max_size=5),
)
def test_the_update_norm_equals_the_difference_to_a_copy(
    how: str, chunk: int, on_device: bool, decay: float, rate: float, left_out: list[int]
) -> None:
    """`on_device`: steps are counted in tensors that are not read, as on CUDA."""
    weights = spread(5)
    groups = [{"params": weights[:2], "weight_decay": decay}, {"params": weights[2:], "weight_decay": 0.0, "lr": 0.03}]
    optimizer = HOW[how](groups)
    optimizer.param_groups[0]["lr"] = rate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_norm, "CHUNK", chunk)
        if on_device:
            patch.setattr(update_norm, "_to_scalars", torch.Tensor.unbind)
        for step, index in enumerate(left_out):
            pulled(weights, step, index)
            before = flat(weights)
            optimizer.step()
            norm, length = update_norm.weight_norm(optimizer), update_norm.update_norm(optimizer)
            assert norm is not None and length is not None
            assert norm.item() == pytest.approx(flat(weights).norm().item(), rel=1e-12)
            assert length.item() == pytest.approx((flat(weights) - before).norm().item(), rel=1e-7)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_norms_of_half_precision_weights_are_computed_in_float32(
    dtype: torch.dtype, least: float, on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 the update is that before rounding."""
    if on_device:
        monkeypatch.setattr(update_norm, "_to_scalars", torch.Tensor.unbind)
    weights = spread(2, dtype)
    exact = [torch.nn.Parameter(weight.detach().double()) for weight in weights]
    lengths = []
    for these in (weights, exact):
        optimizer = torch.optim.AdamW(these, lr=0.05, weight_decay=0.1)
        pulled(these, 1, -1)
        optimizer.step()
        length = update_norm.update_norm(optimizer)
        assert length is not None
        lengths.append(length)
    assert lengths[0].dtype != torch.bfloat16 and lengths[0].item() == pytest.approx(lengths[1].item(), rel=least)


class Copies(TrainerCallback):
    """Measures with a copy of the weights, within the trainer's own loop."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.ratios: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        self.before = self._flat(kw["optimizer"])

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        after = self._flat(kw["optimizer"])
        self.norms.append(after.norm().item())
        self.ratios.append((after - self.before).norm().item() / self.norms[-1])

    @staticmethod
    def _flat(optimizer: Any) -> torch.Tensor:
        return flat([weight for group in optimizer.param_groups for weight in group["params"]])


def trained(job: Trainer, line: FakeLink | None = None) -> tuple[FakeLink, Copies]:
    line, copies = line or FakeLink(), Copies()
    job.add_callback(copies)
    attach(job, link=line)
    job.train()
    return line, copies


def announced(line: FakeLink) -> set[str]:
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    return {metric.name for metric in run.metrics}


@pytest.mark.parametrize("settings", [
    {"optim": "adamw_torch_fused", "max_grad_norm": 0.1, "lr_scheduler_type": "cosine", "warmup_steps": 3},
    {"optim": "adamw_torch", "weight_decay": 0.5, "gradient_accumulation_steps": 2},
], ids=["clipped, scheduled, fused", "decay of a group, accumulated"])  # fmt: skip
def test_every_step_has_its_own_update_ratio(tmp_path: Path, settings: dict[str, Any]) -> None:
    line, copies = trained(trainer(tmp_path, **settings), FakeLink({5: ("optimizer.lr_scale", 0.2)}))
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    assert {NORM, RATIO} <= announced(line)
    assert line.series(NORM) == pytest.approx(copies.norms, rel=1e-6)
    assert [seen.metrics.get(RATIO, 0.0) for seen in line.observed()] == pytest.approx(
        copies.ratios, rel=1e-3, abs=1e-9
    )
    assert len(copies.ratios) == 12


def test_an_unknown_optimizer_has_only_the_weight_norm(tmp_path: Path) -> None:
    line, copies = trained(trainer(tmp_path, optim="sgd"))
    assert NORM in announced(line) and RATIO not in announced(line)
    assert line.series(NORM) == pytest.approx(copies.norms, rel=1e-6)
    assert not any(RATIO in seen.metrics for seen in line.observed())
    heir = type("Heir", (torch.optim.AdamW,), {})
    assert not update_norm.is_supported(heir(spread(1)))
    assert not update_norm.is_supported(torch.optim.AdamW([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))]))


def test_frozen_weights_do_not_count(tmp_path: Path) -> None:
    job = trainer(tmp_path, max_steps=2)
    assert isinstance(job.model, torch.nn.Module)
    first, *rest = job.model.parameters()
    first.requires_grad_(False)
    line, _ = trained(job)
    assert line.series(NORM)[-1] == pytest.approx(flat(rest).norm().item(), rel=1e-6)


def test_an_adapter_has_no_update_ratio(tmp_path: Path) -> None:
    job = trainer(tmp_path, max_steps=2)
    assert isinstance(job.model, torch.nn.Module)
    smallest = min(job.model.parameters(), key=torch.numel)
    for weight in job.model.parameters():
        weight.requires_grad_(weight is smallest)
    line, _ = trained(job)
    assert NORM in announced(line) and RATIO not in announced(line)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_overflows_has_no_update_ratio(fused: bool) -> None:
    """The scaler leaves it out, or has a fused optimizer leave it out."""
    weights = spread(3, torch.float32)
    optimizer = torch.optim.AdamW(weights, lr=0.1, fused=fused)
    measure = OptimizerGauges(optimizer, torch.nn.ParameterList(weights), publishes=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    figures = []
    for step in range(4):
        pulled(weights, step, -1)
        assert weights[0].grad is not None
        scaler.scale(torch.ones(()))  # before the first one it refuses to step
        if step in (0, 2):
            weights[0].grad[0] = math.inf
        measure.before_step()
        scaler.step(optimizer)
        scaler.update()
        figures.append(measure.after_step())
    ratios = [float(numbers.get(RATIO, math.nan)) for numbers in figures]
    assert [math.isfinite(ratio) for ratio in ratios] == [False, True, False, True], "NaN is not published"
    assert all(NORM in numbers for numbers in figures)


def test_a_gauge_that_raises_is_given_up_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(update_norm, "update_norm", lambda *_: 1 / 0)
    with caplog.at_level("WARNING", logger="oven.learner"):
        line, copies = trained(trainer(tmp_path))
    assert line.series(NORM) == pytest.approx(copies.norms, rel=1e-6)
    assert not any(RATIO in seen.metrics for seen in line.observed())
    lines = [record.getMessage() for record in caplog.records if RATIO in record.getMessage()]
    assert lines == [f"{RATIO} is no longer measured: division by zero"]
