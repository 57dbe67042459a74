"""`optimizer.lr_scale/<name>`: the rate of the parameter groups with one name, apart from the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, Toy, trainer
from tests.support.loops import Loop
from torch.optim import lr_scheduler

from oven_core.protocol.messages import ActuatorSpec, RunStarted
from oven_learner.client.loop_client import LoopClient
from oven_learner.hf.attach import attach
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SCALE, MATRICES, REST = "optimizer.lr_scale", "optimizer.lr_scale/matrices", "optimizer.lr_scale/rest"
RATES = (0.02, 0.004, 0.001)
"""The user's rates of the groups `matrices`, `rest` and `rest`."""


def named(parameters: Any) -> torch.optim.Optimizer:
    first, second, third, last = parameters
    parts = [("matrices", [first, third]), ("rest", [second]), ("rest", [last])]
    groups = [{"params": part, "name": name, "lr": lr} for (name, part), lr in zip(parts, RATES, strict=True)]
    return torch.optim.AdamW(groups)


def schedule(optimizer: Any) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 20)


def in_sequence(optimizer: Any) -> Any:
    return lr_scheduler.SequentialLR(optimizer, [schedule(optimizer), lr_scheduler.StepLR(optimizer, 3)], [5])


def one_cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=list(RATES), total_steps=20, cycle_momentum=False)


def watched(make_scheduler: Callable[[Any], Any] | None = None) -> tuple[Loop, list[list[float]]]:
    """Return a loop, and the list of its rates: for each step, those of all groups."""
    loop, used = Loop(named), []
    loop.optimizer.register_step_pre_hook(lambda it, *_: used.append([group["lr"] for group in it.param_groups]))
    if make_scheduler is not None:
        scheduler = loop.options["scheduler"] = make_scheduler(loop.optimizer)
        loop.after = scheduler.step
    return loop, used


def outcomes(line: FakeLink) -> list[tuple[str, str, Any, Any]]:
    return [(receipt.actuator, receipt.status, receipt.before, receipt.after) for receipt in line.receipts()]


def announced(line: FakeLink) -> dict[str, ActuatorSpec]:
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    return {spec.name: spec for spec in run.actuators if spec.name.startswith(SCALE)}


@pytest.mark.parametrize("make_scheduler", [None, schedule, in_sequence, one_cycle])
def test_a_named_group_has_its_own_multiplier_on_top_of_the_common_one(make_scheduler: Any) -> None:
    alone, own = watched(make_scheduler)
    alone.alone()
    loop, used = watched(make_scheduler)
    line = loop.run(FakeLink({2: (MATRICES, 0.25), 4: (SCALE, 0.5), 6: (REST, 2.0), 8: (MATRICES, 1.0)}))
    assert outcomes(line) == [
        (MATRICES, "applied", 1, pytest.approx(0.25)),
        (SCALE, "applied", 1, pytest.approx(0.5)),
        (REST, "applied", 1, pytest.approx(2)),
        (MATRICES, "applied", pytest.approx(0.25), pytest.approx(1)),
    ]
    matrices = [1] * 2 + [0.25] * 2 + [0.125] * 4 + [0.5] * 4
    rest = [1] * 4 + [0.5] * 2 + [1] * 6
    scales = zip(matrices, rest, rest, strict=True)
    wanted = [[rate * scale for rate, scale in zip(*pair, strict=True)] for pair in zip(own, scales, strict=True)]
    assert used == [pytest.approx(rates, rel=1e-9) for rates in wanted]
    bounds = {name: (spec.value, spec.low, spec.high, spec.scale) for name, spec in announced(line).items()}
    assert bounds == dict.fromkeys((SCALE, MATRICES, REST), (1.0, 0.1, 3.0, "log"))


def test_without_names_there_is_one_knob() -> None:
    assert announced(Loop().run(FakeLink())).keys() == {SCALE}


def test_a_group_whose_rate_the_loop_sets_is_rejected() -> None:
    loop, used = watched()

    def before(step: int, _: object) -> None:
        for group, rate in zip(loop.optimizer.param_groups, RATES, strict=True):
            group["lr"] = rate

    loop.before = before
    line = loop.run(FakeLink({4: (MATRICES, 0.25), 8: (REST, 0.5)}))
    assert outcomes(line) == [(MATRICES, "rejected", 1, 1), (REST, "rejected", 1, 1)]
    assert used == [list(RATES)] * 12


def test_a_loop_that_multiplies_keeps_the_common_knob_and_is_told_why_it_has_no_other() -> None:
    loop, used = watched()

    def before(step: int, client: LoopClient | None) -> None:
        assert client is not None
        for group, rate in zip(loop.optimizer.param_groups, RATES, strict=True):
            group["lr"] = rate / step * client.lr_scale

    loop.before = before
    line = loop.run(FakeLink({4: (MATRICES, 0.25), 8: (SCALE, 0.5)}))
    assert outcomes(line) == [(MATRICES, "rejected", 1, 1), (SCALE, "applied", 1, 0.5)]
    assert "connect(scheduler=…)" in line.receipts()[0].reason
    assert used[-1] == pytest.approx([rate / 12 / 2 for rate in RATES])


def test_a_later_overwritten_rate_is_reported_for_its_group() -> None:
    loop, used = watched()

    def before(step: int, _: object) -> None:
        if step == 9:
            loop.optimizer.param_groups[0]["lr"] = 0.5

    loop.before = before
    line = loop.run(FakeLink({2: (MATRICES, 0.25), 4: (REST, 0.5)}))
    assert outcomes(line)[2:] == [(MATRICES, "applied", 0.25, 1), (REST, "applied", 0.5, 1)]
    assert used[8:] == [[0.5, 0.5 * RATES[1], 0.5 * RATES[2]]] + [pytest.approx([0.5, *RATES[1:]])] * 3


@pytest.mark.parametrize("make_scheduler", [None, schedule])
def test_a_rollback_keeps_the_rate_of_a_group(make_scheduler: Any) -> None:
    alone, own = watched(make_scheduler)
    alone.alone()
    loop, used = watched(make_scheduler)
    plan = {4: (MATRICES, 0.25), 6: ("run.rollback", 3.0), 8: (MATRICES, 0.5), 10: ("run.undo_rollback", None)}
    line = loop.run(FakeLink(plan))
    assert [status for _, status, *_ in outcomes(line)] == ["applied"] * 4
    back = int(line.receipts()[1].after)  # type: ignore[arg-type]
    positions = [*range(6), *range(back, back + 4), 6, 7]  # the undo returns to step 6
    scales = [1] * 4 + [0.25] * 4 + [0.5] * 4
    wanted = [[own[position][0] * scale, *own[position][1:]] for position, scale in zip(positions, scales, strict=True)]
    assert used == [pytest.approx(rates, rel=1e-9) for rates in wanted]


@pytest.mark.parametrize("kind", ["constant", "linear", "reduce_lr_on_plateau"])
def test_a_checkpoint_of_a_trainer_keeps_the_rate_of_a_group(tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = {
        "lr_scheduler_type": kind,
        "save_strategy": "steps",
        "save_steps": 6,
        "eval_strategy": "steps",
    }

    def run(plan: dict[int, Any], **start: Any) -> list[list[float]]:
        model = Toy()
        optimizer, used = named(model.parameters()), []
        optimizer.register_step_pre_hook(lambda it, *_: used.append([group["lr"] for group in it.param_groups]))
        job = trainer(tmp_path, model=model, optimizers=(optimizer, None), eval_steps=2, **settings)
        line = FakeLink(plan, past=ResumeState(1, 6, 9, {}) if start else None)
        attach(job, link=line)
        job.train(**start)
        assert [status for _, status, *_ in outcomes(line)] == ["applied"] * len(plan)
        return used

    own = run({})
    changed = run({4: (MATRICES, 0.25), 5: (SCALE, 0.5)})
    resumed = run({9: (MATRICES, 1.0)}, resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    scaled = [[first * 0.125, second * 0.5, third * 0.5] for first, second, third in own]
    assert changed[6:] == [pytest.approx(rates, rel=1e-9) for rates in scaled[6:]]
    assert resumed[:3] == [pytest.approx(rates, rel=1e-9) for rates in scaled[6:9]]
    assert resumed[3:] == [pytest.approx([rate * 0.5 for rate in rates], rel=1e-9) for rates in own[9:]]
