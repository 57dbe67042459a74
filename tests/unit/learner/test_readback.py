"""One transfer a step: late numbers are published in order under their own tick; none is averaged or lost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY, Sequential, rows, trainer
from tests.support.decisions import decide

from oven_core.protocol.messages import Observation, Receipt, RunEnded
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.hf.attach import attach
from oven_learner.optim import device_readback
from oven_learner.optim.device_readback import Readback, Transfer, start_transfer
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


class Device:
    """Numbers arrive when the test says so: that is all there is of a device here."""

    def __init__(self) -> None:
        self.done = self.requested = 0
        self.waited: list[int] = []

    def start(self, numbers: Mapping[str, torch.Tensor]) -> Transfer:
        self.requested += 1
        names = tuple(numbers)
        return Transfer(names, torch.stack([numbers[name] for name in names]).double(), Arrival(self, self.requested))


class Arrival:
    def __init__(self, device: Device, number: int) -> None:
        self.device, self.number = device, number

    def query(self) -> bool:
        return self.number <= self.device.done

    def synchronize(self) -> None:
        if not self.query():
            self.device.waited.append(self.number)
            self.device.done = self.number


def step(back: Readback, tick: int) -> None:
    back.request({"loss": torch.tensor(float(tick)), "cosine": torch.tensor(math.nan)})
    back.end_step(tick, tick, {"rate": tick / 10}, frozenset(back.names))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_each_step_is_published_once_in_order_under_its_own_tick(progress: list[int]) -> None:
    device, published = Device(), []
    back = Readback(lambda *words: published.append(words), frozenset({"cosine"}), device.start)
    for tick, further in enumerate(progress, start=1):
        device.done = min(tick, device.done + further)
        step(back, tick)
        assert len(published) == device.done, "what has arrived is published, and nothing waits for the rest"
    assert not device.waited
    back.settle()
    back.settle()
    ticks = range(1, len(progress) + 1)
    assert published == [(n, n, {"loss": float(n), "rate": n / 10}) for n in ticks]


def test_on_cpu_the_numbers_are_there_at_once() -> None:
    numbers = {
        "loss": torch.tensor(1 / 3),
        "norm": torch.tensor([0.1], dtype=torch.float64),
        "half": torch.tensor(2.0).half(),
    }
    pending = start_transfer(numbers)
    assert pending.has_arrived and pending.read() == {name: number.item() for name, number in numbers.items()}


def test_a_step_without_device_numbers_publishes_its_other_metrics() -> None:
    published: list[Any] = []
    back = Readback(lambda *words: published.append(words))
    back.request({})
    back.end_step(4, 2, {"rate": 0.5}, frozenset())
    assert published == [(4, 2, {"rate": 0.5})]


def test_a_nan_is_published_unless_it_means_nothing_to_measure() -> None:
    published: list[Any] = []
    back = Readback(lambda *words: published.append(words[2]), frozenset({"cosine"}))
    back.request({"loss": torch.tensor(math.nan), "cosine": torch.tensor(math.nan), "entropy": torch.tensor(1.0)})
    back.end_step(1, 1, {}, frozenset({"loss", "cosine"}))
    assert list(published[0]) == ["loss"] and math.isnan(published[0]["loss"])


def test_a_receipt_and_the_end_come_after_the_numbers_before_them() -> None:
    """Else what was measured before a change would stand in the log after it."""
    line, device, rate = FakeLink(), Device(), [1.0]
    knobs = Actuators()
    knobs.scalar("rate", lambda: rate[0], lambda value: rate.__setitem__(0, value), low=0.1, high=10)
    back = Readback(lambda tick, number, metrics: client.publish(tick, number, metrics), start=device.start)
    client = OvenClient(line, knobs, settle=back.settle)
    client.start()
    line.incoming.append(decide(2.0, apply_at=4))
    for number in range(1, 6):
        back.request({"loss": torch.tensor(float(number))})
        back.end_step(client.advance(number), number, {}, frozenset({"loss"}))
        client.poll()
    client.close("completed")
    messages = [message for message in line.sent if isinstance(message, Observation | Receipt | RunEnded)]
    kinds = [type(message).__name__ for message in messages]
    assert kinds == ["Observation"] * 3 + ["Receipt"] + ["Observation"] * 2 + ["RunEnded"]
    assert [message.n for message in line.sent] == list(range(1, len(line.sent) + 1))
    seen = [message for message in messages if isinstance(message, Observation)]
    assert [(observation.tick, observation.step, observation.metrics["loss"]) for observation in seen] == [
        (n, n, float(n)) for n in range(1, 6)
    ]
    assert device.waited == [1, 2, 3, 4, 5], "for a receipt and for the end, and for nothing else"


def measured(metrics: Mapping[str, float]) -> dict[str, float]:
    """All but what the clock says."""
    return {name: value for name, value in metrics.items() if not name.startswith(("time/", "tokens_per_s"))}


def test_late_numbers_are_logged_under_their_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = []
    for late in (False, True):
        device = Device()
        job, line = trainer(tmp_path), FakeLink()
        attachment = attach(job, link=line)
        if late:
            back: Any = attachment.readback
            monkeypatch.setattr(back, "start", device.start)
        job.train()
        logs.append([(seen.tick, seen.step, measured(seen.metrics)) for seen in line.observed()])
        assert isinstance(line.sent[-1], RunEnded)
    assert logs[0] == logs[1] and len(logs[0]) == 12


def test_there_is_one_transfer_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[tuple[str, ...]] = []

    def counted(numbers: Mapping[str, torch.Tensor]) -> Transfer:
        requested.append(tuple(numbers))
        return start_transfer(numbers)

    job, line = trainer(tmp_path, gradient_accumulation_steps=2, max_steps=6), FakeLink()
    attachment = attach(job, link=line)
    monkeypatch.setattr(attachment.readback, "start", counted)
    job.train()
    first, weights = ("loss", "grad_norm"), ("optim/weight_norm", "optim/update_ratio")
    assert requested == [first + weights] + [(*first, "optim/grad_momentum_cos", *weights)] * 5
    assert device_readback.start_transfer is start_transfer


def test_a_metric_that_is_not_finite_is_logged_once_and_always_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, line = trainer(tmp_path, data=rows(poison=17), cls=Sequential), FakeLink()
    attach(job, link=line)
    with caplog.at_level("WARNING", logger="oven.learner"):
        job.train()
    lines = [record.getMessage() for record in caplog.records if record.name == "oven.learner"]
    assert [text for text in lines if text.startswith("loss")] == [
        "loss is nan at step 5; it is published unchanged",
        "loss was not finite in 8 of 12 steps",
    ]
    assert [math.isnan(loss) for loss in line.series("loss")] == [False] * 4 + [True] * 8
