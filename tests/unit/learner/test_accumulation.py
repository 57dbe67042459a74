"""`data.accumulation`: the number of micro-batches per step of a loop, read from `client.accumulation`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import oven_learner as oven
from oven_core.errors import ConfigError
from oven_core.protocol.messages import RunStarted
from oven_learner.testing import FakeLink

NAME = "data.accumulation"


class Accumulating:
    """A loop of eight steps that reads the number at each step, except if `reads` is False."""

    def __init__(self, reads: bool = True) -> None:
        torch.manual_seed(2)
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.reads = reads
        self.numbers: list[int] = []

    def step(self, count: int) -> None:
        self.numbers.append(count)
        self.optimizer.zero_grad()
        for _ in range(count):
            x = torch.randn(4, 3)
            ((self.model(x) - x.sum(1, keepdim=True)).square().mean() / count).backward()
        self.optimizer.step()

    def run(self, line: FakeLink, **options: Any) -> FakeLink:
        with oven.connect(
            model=self.model, optimizer=self.optimizer, accumulation=2, max_steps=8, link=line, **options
        ) as client:
            for step in range(1, 9):
                self.step(client.accumulation if self.reads else 2)
                client.observe(step, {})
                client.poll()
        return line


def receipts(line: FakeLink) -> list[tuple[str, Any, Any]]:
    return [(receipt.status, receipt.before, receipt.after) for receipt in line.receipts()]


def test_the_next_step_uses_the_new_number() -> None:
    loop = Accumulating()
    line = loop.run(FakeLink({2: (NAME, 4.0), 5: (NAME, 2.6), 6: (NAME, 9.0)}))
    assert loop.numbers == [2, 2, 4, 4, 4, 3, 3, 3]
    assert receipts(line) == [("applied", 2, 4), ("applied", 4, 3), ("rejected", 3, 3)]
    started = line.sent[0]
    assert isinstance(started, RunStarted)
    [spec] = [spec for spec in started.actuators if spec.name == NAME]
    assert (spec.value, spec.low, spec.high) == (2, 1, 8)


def test_a_loop_that_does_not_read_the_number_gets_a_rejection_with_the_remedy() -> None:
    loop = Accumulating(reads=False)
    line = loop.run(FakeLink({2: (NAME, 4.0)}))
    assert receipts(line) == [("rejected", 2, 2)]
    assert "read it once per step" in line.receipts()[0].reason


def test_a_number_that_no_step_read_any_more_is_not_reported_as_applied() -> None:
    loop = Accumulating()
    line = loop.run(FakeLink({8: (NAME, 4.0)}))
    assert receipts(line) == [("unknown", 2, 4)]


def test_until_a_decision_the_loop_trains_bit_equally() -> None:
    alone = Accumulating()
    for _ in range(8):
        alone.step(2)
    random_state = torch.get_rng_state()
    observed = Accumulating()
    observed.run(FakeLink())
    assert torch.equal(random_state, torch.get_rng_state())
    pairs = zip(alone.model.parameters(), observed.model.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


def test_without_a_controller_the_user_s_own_number_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_MODE", "disabled")
    loop = Accumulating()
    loop.run(FakeLink())
    assert loop.numbers == [2] * 8


@pytest.mark.parametrize("number", [0, -1, 2.5, True])
def test_another_number_is_refused(number: Any) -> None:
    with pytest.raises(ConfigError, match="is not a number of micro-batches"):
        oven.connect(accumulation=number, link=FakeLink())
