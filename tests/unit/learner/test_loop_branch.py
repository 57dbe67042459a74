"""A trial on a loop of one's own moves no bit of the branch that is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.trial_driver import Change, Driver, digest

import oven_learner as oven
from oven_learner.testing import FakeLink
from oven_learner.trials import random_state
from oven_learner.trials.copies import copied, put
from oven_learner.trials.tape import Tape

STEPS = 20


def loop(
    driven: dict[str, Any] | None = None, change_at: int | None = None, epochs: int = 1
) -> tuple[dict[int, str], Any]:
    """Dropout, momentum, a schedule, and a loader that shuffles by torch's own generator."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    x = torch.randn(4 * 40 // epochs, 4)
    loader: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 4, True)
    held_out = torch.randn(6, 4)
    seen: dict[int, str] = {}

    def evaluate() -> dict[str, list[float]]:
        model.eval()
        torch.rand(3)
        return {"eval_loss": (model(held_out) - held_out.sum(1, keepdim=True)).square().flatten().tolist()}

    with oven.connect(
        model=model, optimizer=optimizer, scheduler=scheduler, evaluate=evaluate, evaluate_every=1000, link=FakeLink()
    ) as client:
        branch = client.branch
        assert branch is not None

        def change() -> None:
            assert client.actuators.apply("optimizer.lr_scale", 0.5).status == "applied"

        def fingerprint() -> str:
            return digest(dict(model.state_dict()), optimizer.state_dict(), scheduler._last_lr, random_state.take())

        driver = Driver(branch, changes=[change], **driven) if driven is not None else None
        changing = Change(change_at, change) if change_at is not None else None
        step = 0
        for _ in range(epochs):
            for inputs, targets in client.batches(loader):
                inputs.mul_(1.5)  # it is the loop's to write into
                model.train()
                (model(inputs) - targets).square().mean().backward()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                step += 1
                seen[scheduler.last_epoch] = fingerprint()
                client.observe(step, {"loss": 0.0})
                if driver or changing:
                    (driver or changing).step_ended(scheduler.last_epoch, fingerprint)  # type: ignore[union-attr]
                if scheduler.last_epoch == STEPS:
                    break
            if scheduler.last_epoch == STEPS:
                break
        assert not branch.problem()
        assert branch.reading.name == "eval_loss"
        assert branch.recorded == 0
    return seen, driver


def test_either_branch_is_kept_bit_for_bit() -> None:
    alone, _ = loop()
    control, driver = loop({"at": 4, "steps": 5})
    assert driver.prints == [alone[9], driver.prints[1]]
    assert len(driver.readings[0]) == 6
    assert driver.readings[0] != driver.readings[1]
    assert {step: bits for step, bits in control.items() if step > 9} == {step: alone[step] for step in range(10, 21)}
    directly, _ = loop(change_at=4)
    changed, _ = loop({"at": 4, "steps": 5, "keep": 0})
    assert changed == directly != alone


def test_an_epoch_may_end_within() -> None:
    """What the loop does between epochs is nothing here; the data are the same again."""
    alone, _ = loop(epochs=4)
    control, _ = loop({"at": 7, "steps": 5}, epochs=4)
    assert control[20] == alone[20]


def test_who_measures_nothing_by_example_hears_why() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with oven.connect(model=model, optimizer=optimizer, evaluate=lambda: {"loss": 1.0}, link=FakeLink()) as client:
        assert client.branch is not None
        assert "example by example" in client.branch.problem()
        assert list(client.batches([1, 2])) == [1, 2]


def test_who_reads_past_it_hears_why() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with oven.connect(model=model, optimizer=optimizer, evaluate=lambda: {"loss": [1.0]}, link=FakeLink()) as client:
        assert client.branch is not None
        assert not client.branch.problem()
        client.observe(1, {})
        assert "client.batches(loader)" in client.branch.problem()


def test_a_tape_gives_again_what_was_read() -> None:
    source = iter(range(100))
    tape = Tape()
    assert [tape.read(lambda: next(source)) for _ in range(3)] == [0, 1, 2]
    assert len(tape) == 0
    tape.record()
    first = tape.position
    assert [tape.read(lambda: next(source)) for _ in range(3)] == [3, 4, 5]
    tape.go_to(first)
    assert [tape.read(lambda: next(source)) for _ in range(4)] == [3, 4, 5, 6]
    tape.go_to(first + 1)
    tape.finish()
    assert len(tape) == 3
    assert [tape.read(lambda: next(source)) for _ in range(4)] == [4, 5, 6, 7]
    assert len(tape) == 0
    with pytest.raises(LookupError, match="the trial"):
        tape.go_to(first)


def test_a_tape_repeats_what_reading_drew() -> None:
    """From another state as many integers are drawn; what is not known to be integers gives the states of then."""
    tape = Tape()
    tape.record()
    torch.manual_seed(1)
    tape.read(lambda: torch.empty((), dtype=torch.int64).random_())
    tape.read(lambda: torch.randn(7))
    after = torch.get_rng_state()
    tape.go_to(0)
    torch.manual_seed(2)
    tape.read(lambda: None)
    once = torch.get_rng_state()
    torch.manual_seed(2)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(torch.get_rng_state(), once)
    tape.read(lambda: None)
    assert torch.equal(torch.get_rng_state(), after)


def test_copies_are_apart_and_are_put_back_in_place() -> None:
    held: Any = {"a": [torch.ones(2)], "b": (1, {"c": torch.zeros(1)})}
    apart = copied(held)
    held["a"][0].add_(1)
    assert apart["a"][0].tolist() == [1.0, 1.0]
    back = put(held, apart)
    assert back is held
    assert held["a"][0].tolist() == [1.0, 1.0]
