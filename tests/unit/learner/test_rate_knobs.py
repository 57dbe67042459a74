"""The rates of several optimizers, each with its own knob, and warm-ups that begin during the training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, Toy, trainer
from tests.support.loops import STEPS, Loop
from torch.optim import lr_scheduler

from oven_core.errors import ConfigError
from oven_core.protocol.messages import Observation, RunStarted
from oven_learner.actuators import Actuators
from oven_learner.client.loop_client import LoopClient
from oven_learner.custom_loop import connect
from oven_learner.hf.attach import attach
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SCALE, MUON, ADAMW, WARMUP = (
    "optimizer.lr_scale",
    "optimizer.lr_scale/muon",
    "optimizer.lr_scale/adamw",
    "optimizer.warmup",
)
MUON_RATE, ADAMW_RATE, RATE = 0.02, 0.004, 0.01


def linear(optimizer: Any) -> Any:
    return lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 20)


def receipts(line: FakeLink) -> list[tuple[str, str, Any, Any]]:
    return [(receipt.actuator, receipt.status, receipt.before, receipt.after) for receipt in line.receipts()]


class TwoOptimizers:
    """Trains matrices with Muon and the other weights with AdamW, for twelve steps."""

    def __init__(self, make_scheduler: Callable[[Any], Any] | None = None) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        weights = [*self.model.parameters()]
        self.muon = torch.optim.Muon([w for w in weights if w.ndim == 2], lr=MUON_RATE)
        self.adamw = torch.optim.AdamW([w for w in weights if w.ndim == 1], lr=ADAMW_RATE)
        self.optimizers = (self.muon, self.adamw)
        self.schedulers = [make_scheduler(optimizer) for optimizer in self.optimizers] if make_scheduler else []
        self.before: Callable[[int, LoopClient | None], object] = lambda *_: None
        self.rates: list[tuple[float, float]] = []

    def step(self) -> float:
        x = torch.randn(8, 4)
        loss = torch.nn.functional.mse_loss(self.model(x), x.sum(1, keepdim=True))
        loss.backward()  # type: ignore[no-untyped-call]
        self.rates.append((self.muon.param_groups[0]["lr"], self.adamw.param_groups[0]["lr"]))
        for part in (*self.optimizers, *self.schedulers):
            part.step()
        self.model.zero_grad()
        return loss.item()

    def alone(self) -> list[torch.Tensor]:
        for step in range(1, STEPS + 1):
            self.before(step, None)
            self.step()
        return [weight.detach() for weight in self.model.parameters()]

    def run(self, line: FakeLink, **options: Any) -> FakeLink:
        settings: dict[str, Any] = {"optimizer": self.optimizers, "scheduler": self.schedulers} | options
        with connect(model=self.model, max_steps=STEPS, link=line, **settings) as client:
            for step in range(1, STEPS + 1):
                self.before(step, client)
                client.observe(step, {"loss": self.step()})
                client.poll()
        return line


@pytest.mark.parametrize("make_scheduler", [None, linear])
def test_each_optimizer_has_its_own_rate_on_top_of_the_common_one(make_scheduler: Any) -> None:
    alone = TwoOptimizers(make_scheduler)
    alone.alone()
    loop = TwoOptimizers(make_scheduler)
    line = loop.run(FakeLink({2: (MUON, 0.25), 4: (SCALE, 0.5), 6: (ADAMW, 2.0)}))
    assert receipts(line) == [
        (MUON, "applied", 1, pytest.approx(0.25)),
        (SCALE, "applied", 1, pytest.approx(0.5)),
        (ADAMW, "applied", 1, pytest.approx(2)),
    ]
    muon, adamw = [1] * 2 + [0.25] * 2 + [0.125] * 8, [1] * 4 + [0.5] * 2 + [1] * 6
    wanted = [(m * a, n * b) for (m, n), a, b in zip(alone.rates, muon, adamw, strict=True)]
    assert loop.rates == [pytest.approx(pair, rel=1e-9) for pair in wanted]
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    assert {spec.name for spec in run.actuators if spec.name.startswith(SCALE)} == {SCALE, MUON, ADAMW}


@pytest.mark.parametrize("make_scheduler", [None, linear])
def test_several_optimizers_train_bit_equally_until_a_decision(make_scheduler: Any) -> None:
    alone = TwoOptimizers(make_scheduler).alone()
    loop = TwoOptimizers(make_scheduler)
    loop.run(FakeLink(), accumulation=1)
    assert all(torch.equal(a, b) for a, b in zip(alone, loop.model.parameters(), strict=True))


def test_users_name_their_optimizers() -> None:
    loop = TwoOptimizers()
    line = loop.run(FakeLink({2: ("optimizer.lr_scale/body", 0.5)}), optimizer={"body": loop.muon, "head": loop.adamw})
    assert receipts(line) == [("optimizer.lr_scale/body", "applied", 1, 0.5)]
    assert loop.rates[-1] == (MUON_RATE / 2, ADAMW_RATE)


def test_a_rate_that_the_loop_overwrites_in_one_optimizer_is_given_up_in_all() -> None:
    loop = TwoOptimizers()

    def before(step: int, _: object) -> None:
        loop.adamw.param_groups[0]["lr"] = ADAMW_RATE

    loop.before = before
    line = loop.run(FakeLink({4: (SCALE, 0.5)}))
    assert receipts(line) == [(SCALE, "rejected", 1, 1)]
    assert loop.rates[-1] == (MUON_RATE, ADAMW_RATE)


def test_a_rollback_restores_the_moments_of_all_optimizers() -> None:
    loop = TwoOptimizers()
    counts: list[float] = []
    loop.before = lambda *_: counts.append(max([float(s["step"]) for s in loop.adamw.state.values()], default=0.0))
    line = loop.run(FakeLink({4: (ADAMW, 0.25), 8: ("run.rollback", 3.0)}))
    back = line.receipts()[1].after
    assert isinstance(back, float) and counts[8] == back < 8
    assert loop.rates[-1] == pytest.approx((MUON_RATE, ADAMW_RATE / 4)), "a rollback keeps the knobs"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": []}, "at least one"),
        ({"scheduler": {"sgd": None}}, "does not match the optimizers muon, adamw"),
        ({"scheduler": [None]}, "does not match the optimizers muon, adamw"),
    ],
)
def test_optimizers_without_distinct_names_are_refused(options: dict[str, Any], message: str) -> None:
    loop = TwoOptimizers()
    with pytest.raises(ConfigError, match=message):
        loop.run(FakeLink(), **options)
    with pytest.raises(ConfigError, match="several adamw optimizers; name them"):
        loop.run(FakeLink(), optimizer=[loop.adamw, torch.optim.AdamW(loop.model.parameters())])


def test_the_users_own_rate_knob_takes_precedence() -> None:
    loop, rate = Loop(), {"value": 3.0}
    own = Actuators()
    own.scalar(SCALE, lambda: rate["value"], lambda value: rate.update(value=value), low=1, high=9)
    loop.options["actuators"] = own
    line = loop.run(FakeLink({4: (SCALE, 5.0)}))
    assert receipts(line) == [(SCALE, "applied", 3, 5)]
    assert rate["value"] == 5 and loop.rates == [RATE] * STEPS


def ramp(own: list[float], first: int, steps: int) -> list[float]:
    """The rates `own`, with a warm-up of `steps` steps from index `first` on."""
    return [
        rate * ((index - first + 1) / (steps + 1) if first <= index < first + steps else 1)
        for index, rate in enumerate(own)
    ]


def one_cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=20, cycle_momentum=False)


def cosine(optimizer: Any) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, 20)


def warmed(optimizer: Any) -> Any:
    return lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6), cosine(optimizer)], [6]
    )


@pytest.mark.parametrize("make_scheduler", [None, linear, cosine, one_cycle, warmed])
def test_a_warmup_multiplies_any_schedule_and_ends_by_itself(make_scheduler: Any) -> None:
    def watched() -> Loop:
        loop = Loop()
        if make_scheduler is not None:
            scheduler = loop.options["scheduler"] = make_scheduler(loop.optimizer)
            loop.after = scheduler.step
        return loop

    alone, loop = watched(), watched()
    alone.alone()
    line = loop.run(FakeLink({3: (WARMUP, 5.0), 10: (SCALE, 0.5)}))
    assert receipts(line) == [
        (WARMUP, "applied", 0, 5),
        (WARMUP, "applied", 5, 0),
        (SCALE, "applied", pytest.approx(1), pytest.approx(0.5)),
    ]
    wanted = ramp(alone.rates, 3, 5)
    assert loop.rates == pytest.approx(wanted[:10] + [rate / 2 for rate in wanted[10:]], rel=1e-9)


def test_a_warmup_can_be_ended_and_is_bounded_by_half_the_run() -> None:
    loop = Loop()
    line = loop.run(FakeLink({2: (WARMUP, 7.0), 3: (WARMUP, 6.0), 6: (WARMUP, 0.0)}))
    assert receipts(line) == [
        (WARMUP, "rejected", 0, 0),
        (WARMUP, "applied", 0, 6),
        (WARMUP, "applied", 6, 0),
    ]
    assert "outside the bounds [0, 6]" in line.receipts()[0].reason
    assert loop.rates == pytest.approx(ramp([RATE] * 6, 3, 6) + [RATE] * 6)


def test_a_loop_that_sets_its_rate_warms_up_through_lr_scale() -> None:
    loop = Loop()

    def before(step: int, client: LoopClient | None) -> None:
        assert client is not None
        loop.optimizer.param_groups[0]["lr"] = RATE / step * client.lr_scale

    loop.before = before
    line = loop.run(FakeLink({4: (WARMUP, 4.0)}))
    assert receipts(line) == [(WARMUP, "applied", 0, 4), (WARMUP, "applied", 4, 0)]
    assert loop.rates == pytest.approx(ramp([RATE / step for step in range(1, 13)], 4, 4))


def test_a_warmup_that_the_loop_overwrites_is_rejected() -> None:
    loop = Loop()
    loop.before = lambda *_: loop.optimizer.param_groups[0].update(lr=RATE)
    line = loop.run(FakeLink({4: (WARMUP, 4.0)}))
    assert receipts(line) == [(WARMUP, "rejected", 0, 0)]
    assert loop.rates == [RATE] * STEPS


def test_a_rollback_during_a_warmup_starts_it_again() -> None:
    loop = Loop()
    line = loop.run(FakeLink({4: (WARMUP, 6.0), 8: ("run.rollback", 3.0)}))
    assert [entry[1] for entry in receipts(line)] == ["applied", "applied"]
    assert loop.rates == pytest.approx(ramp([RATE] * 8, 4, 6) + ramp([RATE] * 4, 0, 6))


@pytest.mark.parametrize("kind", ["linear", "cosine", "reduce_lr_on_plateau"])
def test_a_checkpoint_of_a_trainer_continues_its_warmup(tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = {
        "lr_scheduler_type": kind,
        "save_strategy": "steps",
        "save_steps": 6,
        "eval_strategy": "steps",
    }

    def run(plan: dict[int, Any], past: ResumeState | None = None, **start: Any) -> tuple[list[float], FakeLink]:
        model, used = Toy(), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
        optimizer.register_step_pre_hook(lambda it, *_: used.append(it.param_groups[0]["lr"]))
        job = trainer(tmp_path, model=model, optimizers=(optimizer, None), eval_steps=2, **settings)
        line = FakeLink(plan, past=past)
        attach(job, link=line)
        job.train(**start)
        return used, line

    own, _ = run({})
    changed, line = run({4: (WARMUP, 5.0)})
    assert receipts(line) == [(WARMUP, "applied", 0, 5), (WARMUP, "applied", 5, 0)]
    assert changed == pytest.approx(ramp(own, 4, 5), rel=1e-9)
    observations = [message for message in line.sent if isinstance(message, Observation)]
    published = [observation.metrics["learning_rate"] for observation in observations]
    assert published == pytest.approx(changed, rel=1e-6), "the rate that the step used, not that of the next one"
    past = ResumeState(1, 6, 9, {"1": {WARMUP: 5.0}})
    resumed, line = run({}, past, resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert resumed == pytest.approx(changed[6:], rel=1e-9)
    assert receipts(line) == [(WARMUP, "applied", 5, 0)]
