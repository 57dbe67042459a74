"""Receipts of `optimizer.lr_scale` against the rate that the optimizer's steps used: equal, or a rejection."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, trainer
from tests.support.decisions import decide
from tests.support.loops import STEPS, Loop
from transformers import TrainerCallback

from oven_core.protocol.messages import Observation, Receipt, RunEnded, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.client.loop_client import LoopClient
from oven_learner.hf.attach import attach
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SCALE, RATE = "optimizer.lr_scale", 0.01
PLAN: dict[int, tuple[str, Any]] = {4: (SCALE, 0.25), 8: (SCALE, 0.5)}
"""Decided once tick 4 is there, so that step 5 is the first that can use it."""
Set = Callable[[Loop, int, LoopClient | None], None]
LambdaLR = torch.optim.lr_scheduler.LambdaLR


def cosine(step: int) -> float:
    return RATE * (1 + math.cos(math.pi * (step - 1) / 20)) / 2


def put(loop: Loop, rate: float) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] = rate


def plain(loop: Loop) -> None:
    pass


def own_cosine(loop: Loop) -> None:
    loop.before = lambda step, _: put(loop, cosine(step))


def own_constant(loop: Loop) -> None:
    loop.before = lambda step, _: put(loop, RATE)


def multiplied(loop: Loop) -> None:
    loop.before = lambda step, client: put(loop, cosine(step) * (client.lr_scale if client is not None else 1.0))


def asked_and_not_multiplied(loop: Loop) -> None:
    def before(step: int, client: LoopClient | None) -> None:
        _ = client.lr_scale if client is not None else 1.0  # for a log, say
        put(loop, cosine(step))

    loop.before = before


def scheduled(made: Callable[[Any], Any], passed: bool) -> Callable[[Loop], None]:
    def arrange(loop: Loop) -> None:
        scheduler = made(loop.optimizer)
        loop.after = scheduler.step
        if passed:
            loop.options["scheduler"] = scheduler

    return arrange


def line_down(optimizer: Any) -> Any:
    return LambdaLR(optimizer, lambda step: 1 - step / 20)


def flat(optimizer: Any) -> Any:
    return LambdaLR(optimizer, lambda step: 1.0)


def in_sequence(optimizer: Any) -> Any:
    up = LambdaLR(optimizer, lambda step: (step + 1) / 4)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [up, line_down(optimizer)], [3])


def stepped_before(loop: Loop) -> None:
    """The schedule moves on between `poll` and the next step."""
    scheduler = loop.options["scheduler"] = line_down(loop.optimizer)
    loop.before = lambda step, _: scheduler.step()


HOLDS = {
    "a constant": plain,
    "a schedule that was passed": scheduled(line_down, passed=True),
    "two in sequence": scheduled(in_sequence, passed=True),
    "a schedule that was passed, and moves before the step": stepped_before,
    "a loop that multiplies": multiplied,
}
OVERWRITES = {
    "a cosine of its own": own_cosine,
    "a constant set at each step": own_constant,
    "a schedule that was not passed": scheduled(line_down, passed=False),
    "a flat schedule that was not passed": scheduled(flat, passed=False),
    "a loop that asks and does not multiply": asked_and_not_multiplied,
}


def own_rates(arrange: Callable[[Loop], None], steps: int = STEPS) -> list[float]:
    loop = Loop()
    arrange(loop)
    loop.alone(steps)
    return loop.rates


def receipts(line: FakeLink) -> list[Receipt]:
    return [receipt for receipt in line.receipts() if receipt.actuator == SCALE]


@pytest.mark.parametrize("how", HOLDS)
def test_a_rate_that_the_steps_use_is_applied(how: str) -> None:
    loop = Loop()
    HOLDS[how](loop)
    line = loop.run(FakeLink(dict(PLAN)))
    assert [(r.status, r.before, r.after) for r in receipts(line)] == [("applied", 1, 0.25), ("applied", 0.25, 0.5)]
    own = own_rates(HOLDS[how])
    assert loop.rates == pytest.approx(own[:4] + [r * 0.25 for r in own[4:8]] + [r * 0.5 for r in own[8:]], rel=1e-9)
    assert line.series("learning_rate") == pytest.approx(loop.rates, rel=1e-8), "what is published is what was used"


@pytest.mark.parametrize("how", OVERWRITES)
def test_an_overwritten_rate_is_rejected_with_the_remedy(how: str, caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    OVERWRITES[how](loop)
    with caplog.at_level("WARNING", logger="oven.learner"):
        line = loop.run(FakeLink(dict(PLAN)))
        assert loop.client is not None and loop.client.actuators.read(SCALE) == 1, "what is in force"
    assert [(r.status, r.before, r.after) for r in receipts(line)] == [("rejected", 1, 1)] * 2
    for receipt in receipts(line):
        assert receipt.reason.startswith("your loop sets the rate itself")
        assert "get_lr(step) * client.lr_scale" in receipt.reason and "scheduler=" in receipt.reason
    own = own_rates(OVERWRITES[how])
    changed = [n for n, (used, alone) in enumerate(zip(loop.rates, own, strict=True)) if used != pytest.approx(alone)]
    assert changed in ([], [4, 8]), "a schedule that nobody knows of comes a step later"
    assert sum("sets the rate itself" in record.getMessage() for record in caplog.records) <= 1


def test_a_loop_that_sets_its_rate_is_recognised_before_any_decision() -> None:
    loop = Loop()
    scheduled(line_down, passed=False)(loop)
    line = loop.run(FakeLink({4: (SCALE, 0.25)}))
    assert receipts(line)[0].status == "rejected" and loop.rates == pytest.approx(own_rates(own_line)), "not tried"


def own_line(loop: Loop) -> None:
    loop.before = lambda step, _: put(loop, RATE * (1 - (step - 1) / 20))


def test_after_two_overwritten_changes_further_ones_are_refused() -> None:
    loop = Loop()
    loop.after = lambda: put(loop, RATE)
    line = loop.run(FakeLink({n: (SCALE, 0.25) for n in (2, 5, 8, 11)}), 14)
    assert [r.status for r in receipts(line)] == ["rejected"] * 4
    assert [n for n, rate in enumerate(loop.rates) if rate != RATE] == [2, 5]


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    first, *others = parameters
    return torch.optim.SGD([{"params": [first]}, {"params": others, "lr": RATE / 2}], lr=RATE)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("has_scheduler", [False, True])
def test_a_loop_that_sets_one_group_keeps_its_own_rates_in_all(index: int, asks: bool, has_scheduler: bool) -> None:
    loop = Loop(two_groups)
    used: list[list[float]] = []
    if has_scheduler:
        scheduled(flat, passed=True)(loop)

    def before(step: int, client: LoopClient | None) -> None:
        _ = client.lr_scale if client is not None and asks else 1.0
        loop.optimizer.param_groups[index]["lr"] = RATE

    loop.before = before
    loop.optimizer.register_step_post_hook(lambda it, *_: used.append([group["lr"] for group in it.param_groups]))
    line = loop.run(FakeLink({4: (SCALE, 0.5)}))
    assert [(r.status, r.before, r.after) for r in receipts(line)] == [("rejected", 1, 1)]
    assert all(rates == pytest.approx([RATE, RATE if index else RATE / 2]) for rates in used[1:]), used


def test_a_scheduler_that_connect_does_not_know_keeps_its_rates() -> None:
    """StepLR multiplies the rate that it finds, so that a change would stay in it unseen."""
    loop = Loop()
    scheduled(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3), passed=False)(loop)
    own = [RATE * 0.1 ** (n // 3) for n in range(STEPS)]
    line = loop.run(FakeLink({4: (SCALE, 0.5)}))
    assert [(r.status, r.before, r.after) for r in receipts(line)] == [("rejected", 1, 1)]
    assert "connect(scheduler=…)" in receipts(line)[0].reason and loop.rates == pytest.approx(own)


def multiply(loop: Loop, factor: float) -> None:
    for group in loop.optimizer.param_groups:
        group["lr"] *= factor


def cut(loop: Loop) -> None:
    loop.before = lambda step, _: multiply(loop, 0.1) if step == 8 else None


def cut_and_decay(loop: Loop) -> None:
    loop.before = lambda step, _: multiply(loop, 0.1 if step == 8 else 0.99) if step >= 8 else None


def plateau(loop: Loop) -> None:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(loop.optimizer, patience=1)
    loop.before = lambda step, _: scheduler.step(2.0 if step in (7, 8) else 1 / step)  # reduces the rate at step 8


@pytest.mark.parametrize("scale", [0.5, 2.0])
@pytest.mark.parametrize("changes", [cut, cut_and_decay, plateau])
def test_a_loop_that_multiplies_its_current_rate_keeps_the_scale(changes: Callable[[Loop], None], scale: float) -> None:
    loop, used, alone = Loop(two_groups), list[list[float]](), Loop(two_groups)
    changes(loop)
    changes(alone)
    alone.alone()
    loop.optimizer.register_step_post_hook(lambda it, *_: used.append([group["lr"] for group in it.param_groups]))
    line = loop.run(FakeLink({3: (SCALE, scale), 10: (SCALE, 1.0)}))
    wanted = [rate * (scale if 3 < step <= 10 else 1) for step, rate in enumerate(alone.rates, start=1)]
    assert used == [pytest.approx([rate, rate / 2], rel=1e-9) for rate in wanted]
    assert line.series("learning_rate") == pytest.approx(wanted)
    decided = [receipt for receipt in receipts(line) if receipt.decision_id]
    assert [(r.status, r.before, r.after) for r in decided] == [("applied", 1, scale), ("applied", scale, 1)]
    others = [receipt for receipt in receipts(line) if not receipt.decision_id]
    assert [(r.status, r.before, r.after) for r in others] == [("applied", scale, scale)], "reported once"
    text = f"2 of 2 parameter groups, the first from {RATE * scale:g} to {RATE * scale / 10:g}, and the scale is still"
    assert all(text in receipt.reason for receipt in others)


def test_a_change_that_is_undone_later_is_reported() -> None:
    loop, calls = Loop(), []

    def before(step: int, _: object) -> None:
        if step >= 9:
            calls.append(step)
            put(loop, RATE)

    loop.before = before
    line = loop.run(FakeLink({3: (SCALE, 0.25)}))
    applied, undone = receipts(line)
    assert (applied.status, applied.after, applied.tick) == ("applied", 0.25, 3)
    assert (undone.decision_id, undone.status, undone.before, undone.after) == ("", "applied", 0.25, 1.0)
    assert undone.tick == 8 and "your loop sets the rate itself: it was 0.0025, and the step used 0.01" in undone.reason
    assert loop.rates == pytest.approx([RATE] * 3 + [RATE / 4] * 5 + [RATE] * 4) and calls


def test_a_delayed_receipt_has_the_tick_of_the_change_and_keeps_the_order() -> None:
    loop = Loop()
    scheduled(line_down, passed=True)(loop)
    line = loop.run(FakeLink({3: (SCALE, 0.25)}))
    loop = Loop()
    scheduled(line_down, passed=True)(loop)
    both = FakeLink({3: (SCALE, 0.25)})
    both.incoming.append(decide(None, actuator="run.checkpoint", number=9, apply_at=4))
    loop.run(both)
    assert [(r.actuator, r.tick, r.step) for r in line.receipts()] == [(SCALE, 3, 3)]
    assert {(r.actuator, r.tick, r.step) for r in both.receipts()} == {(SCALE, 3, 3), ("run.checkpoint", 3, 3)}
    kinds = [type(message) for message in line.sent]
    assert kinds[4:6] == [Receipt, Observation], "before the step that used it is published"


def test_a_run_that_ends_first_reports_the_outcome_as_far_as_known() -> None:
    loop = Loop()
    line = loop.run(FakeLink({STEPS: (SCALE, 0.25)}))
    (receipt,) = receipts(line)
    assert (receipt.status, receipt.before) == ("unknown", 1.0) and "ended before a step used it" in receipt.reason
    loop = Loop()
    line = loop.run(FakeLink({STEPS - 1: (SCALE, 0.25)}))
    assert [r.status for r in receipts(line)] == ["applied"], "the last step used it"
    assert isinstance(line.sent[-1], RunEnded)


def test_changes_between_two_steps_have_one_outcome() -> None:
    """As when the bus was away for a while."""
    for arrange, status, after in ((plain, "applied", [0.25, 0.5]), (own_constant, "rejected", [1.0, 1.0])):
        loop, line = Loop(), FakeLink()
        line.incoming.extend([decide(0.25, actuator=SCALE, number=1), decide(0.5, actuator=SCALE, number=2)])
        arrange(loop)
        loop.run(line)
        assert [(r.status, r.after) for r in receipts(line)] == [(status, value) for value in after]
        assert loop.rates == pytest.approx([RATE] + [RATE / 2 if status == "applied" else RATE] * (STEPS - 1))


def test_steps_skipped_by_a_gradient_scaler_do_not_count() -> None:
    loop = Loop()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    left_out = (4, 5)

    def step() -> float:
        loop.optimizer.zero_grad()
        loss = loop.model(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        if number[0] in left_out:
            loop.overflow()
        scaler.step(loop.optimizer)
        scaler.update()
        return float(loss.item())

    number = [0]
    loop.before = lambda step, _: number.__setitem__(0, step)
    loop.step = step  # type: ignore[method-assign]
    line = loop.run(FakeLink({3: (SCALE, 0.25)}))
    (receipt,) = receipts(line)
    assert (receipt.status, receipt.tick) == ("applied", 3)
    index = line.sent.index(receipt)
    assert [m.step for m in line.observed() if line.sent.index(m) < index] == list(range(1, 7)), "the second step after"
    assert len(loop.rates) == STEPS - 2


def test_while_held_a_scheduled_rate_is_answered_at_once() -> None:
    loop, line = Loop(), FakeLink()
    scheduled(line_down, passed=True)(loop)
    line.incoming.extend([OperatorCommand(id="a", action="hold"), decide(0.25, actuator=SCALE)])
    answered: list[int] = []
    receive = line.receive

    def resumes() -> Any:
        if len(line.receipts()) == 2 and not answered:
            answered.append(len(line.observed()))
            return OperatorCommand(id="b", action="resume")
        return receive()

    line.receive = resumes  # type: ignore[method-assign]
    loop.run(line)
    assert answered == [1] and receipts(line)[0].status == "applied"


def test_a_resumed_loop_that_does_not_multiply_reports_the_lost_scale() -> None:
    loop = Loop()
    own_constant(loop)
    line = loop.run(FakeLink(past=ResumeState(1, 5, 9, {"1": {SCALE: 0.25}}, training="1")))
    run = line.sent[0]
    assert isinstance(run, RunStarted) and {s.name: s.value for s in run.actuators}[SCALE] == 0.25
    assert [(r.status, r.before, r.after) for r in receipts(line)] == [("applied", 0.25, 1.0)]
    loop = Loop()
    multiplied(loop)
    line = loop.run(FakeLink(past=ResumeState(1, 5, 9, {"1": {SCALE: 0.25}}, training="1")))
    assert not receipts(line)
    assert loop.rates == pytest.approx([0.25 * rate for rate in own_rates(multiplied)])


class Callback(TrainerCallback):
    """A user's own."""

    def __init__(self, event: str, rate: Callable[[int], float]) -> None:
        self.rate, self.used = rate, []  # type: ignore[var-annotated]
        setattr(self, event, self._put)

    def _put(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
        for group in kw["optimizer"].param_groups:
            group["lr"] = self.rate(state.global_step)


EVENTS = ["on_step_begin", "on_pre_optimizer_step", "on_step_end"]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_callback_that_sets_the_rate_is_detected_under_attach(
    tmp_path: Path, event: str, moves: bool, first: bool
) -> None:
    """`first`: the callback is called before ours."""
    job = trainer(tmp_path, lr_scheduler_type="constant")
    own = Callback(event, cosine if moves else lambda _: RATE)
    used: list[float] = []
    line = FakeLink(dict(PLAN))
    if first:
        job.add_callback(own)
    attach(job, link=line)
    if not first:
        job.add_callback(own)
    job.create_optimizer_and_scheduler(12)
    assert job.optimizer is not None
    job.optimizer.register_step_pre_hook(lambda it, *_: used.append(it.param_groups[0]["lr"]))
    job.train()
    in_force: Any = 1.0
    wanted = [cosine(max(0, n - (event != "on_step_end"))) if moves else RATE for n in range(12)]
    rate_receipts = receipts(line)
    assert rate_receipts and all("sets the rate itself" in r.reason or r.after in (0.25, 0.5) for r in rate_receipts)
    for number, rate in enumerate(used[1:], start=1):
        in_force = next(
            (r.after for r in reversed(rate_receipts) if r.status == "applied" and r.tick <= number), in_force
        )
        if not moves:
            assert rate == pytest.approx(wanted[number] * in_force), (number, rate_receipts)
    if moves or event != "on_step_end" or not first:
        assert [r.status for r in rate_receipts] == ["rejected"] * 2
    assert line.series("learning_rate") == pytest.approx(used)
