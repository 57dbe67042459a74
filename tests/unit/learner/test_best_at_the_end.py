"""`run.best` in a trainer and in a loop, from the decision to what the run ends with."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, equal, leave_no_memory, rows, trainer, weights
from tests.support.loops import STEPS, Loop
from transformers import Trainer, TrainerCallback

import oven_learner as oven
from oven_core.protocol.messages import MetricSpec, Receipt, RunEnded, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink, decision

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
ASKED = {2: ("run.best", "best")}
MSE = MetricSpec(name="eval/mse", better="down", held_out=True)
AT = 6
"""The step after which something spoils the weights."""


class Spoiling(TrainerCallback):
    """Keeps the weights after each step, and adds to them after one of them."""

    def __init__(self, trainer: Trainer, spoil_step: int = AT) -> None:
        self.trainer, self.spoil_step = trainer, spoil_step
        self.seen: dict[int, list[torch.Tensor]] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.spoil_step:
            with torch.no_grad():
                for parameter in self.trainer.model.parameters():  # type: ignore[union-attr]
                    parameter.add_(1.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen[state.global_step] = weights(self.trainer)


def announced(line: FakeLink) -> set[str]:
    run = next(message for message in line.sent if isinstance(message, RunStarted))
    return {spec.name for spec in run.actuators}


def last_word(line: FakeLink) -> Receipt:
    """Of `run.best`; it stands before the end and answers no decision."""
    *_, receipt, ended = line.sent
    assert isinstance(ended, RunEnded) and isinstance(receipt, Receipt)
    assert (receipt.actuator, receipt.decision_id, receipt.command) == ("run.best", "", "")
    return receipt


def metrics_at_the_end(line: FakeLink) -> dict[str, float]:
    assert isinstance(line.sent[-1], RunEnded)
    return line.sent[-1].metrics


def spoilt(folder: Path, line: FakeLink, **options: Any) -> Spoiling:
    settings = options.pop("settings", {})
    job = trainer(folder, **settings)
    if "evaluate" in options:
        evaluate = options.pop("evaluate")
        options |= {"evaluate": lambda: evaluate(job), "evaluate_every": 2, "metrics": (MSE,)}
    attach(job, link=line, **options)
    watch = Spoiling(job)
    job.add_callback(watch)
    job.train()
    return watch


def loss_of(job: Trainer) -> dict[str, float]:
    held = rows(8)
    assert isinstance(job.model, torch.nn.Module)
    with torch.no_grad():
        return {
            "eval/mse": float(
                job.model(torch.stack([r["x"] for r in held]), torch.stack([r["labels"] for r in held]))["loss"]
            )
        }


EVALUATED = {"settings": {"eval_strategy": "steps", "eval_steps": 2}}


@pytest.mark.parametrize("options", [EVALUATED, {"evaluate": loss_of}], ids=["eval_strategy", "evaluate"])
def test_a_trainer_ends_with_its_best_weights(tmp_path: Path, options: dict[str, Any]) -> None:
    line = FakeLink(ASKED)
    watch = spoilt(tmp_path, line, **options)
    assert [receipt.status for receipt in line.receipts()] == ["applied", "applied"]
    assert (line.receipts()[0].before, line.receipts()[0].after) == ("last", "best")
    last_receipt, metric = last_word(line), "eval/mse" if "evaluate" in options else "eval/loss"
    assert last_receipt.reason.startswith(f"restored the weights of step {AT}: {metric} "), last_receipt.reason
    assert (last_receipt.before, last_receipt.after, last_receipt.step) == ("best", "best", 12)
    assert equal(weights(watch.trainer), watch.seen[AT]) and not equal(watch.seen[AT], watch.seen[12])
    readings = [seen.metrics[metric] for seen in line.observed() if metric in seen.metrics]
    assert metrics_at_the_end(line)[metric] == pytest.approx(min(readings))


@pytest.mark.parametrize("options", [EVALUATED, {"evaluate": loss_of}], ids=["eval_strategy", "evaluate"])
def test_without_the_knob_a_trainer_ends_with_its_last_weights_bit_for_bit(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    line = FakeLink()
    watch = spoilt(tmp_path, line, **options)
    assert "run.best" in announced(line) and not line.receipts()
    alone = trainer(tmp_path, **options.get("settings", {}))
    spoil = Spoiling(alone)
    alone.add_callback(spoil)
    alone.train()
    assert equal(weights(watch.trainer), weights(alone))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "nothing is evaluated"),
        ({"evaluate": lambda _: {"eval/what": 1.0}}, "the metric that stands for the whole is not measured"),
        (
            {"settings": {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps",
                          "eval_steps": 2, "save_steps": 2}},
            "the trainer goes back itself",
        ),
    ],
)  # fmt: skip
def test_without_a_held_out_metric_run_best_is_not_announced(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    line = FakeLink()
    spoilt(tmp_path, line, **options)
    assert "run.best" not in announced(line), why


def test_a_model_too_large_to_copy_has_no_run_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_no_memory(monkeypatch)
    line = FakeLink()
    spoilt(tmp_path, line, **EVALUATED)
    assert "run.best" not in announced(line)


def looped(line: FakeLink, *, spoil_at: int = AT, steps: int = STEPS, **options: Any) -> Loop:
    loop = Loop()
    loop.options = {"evaluate": loop.evaluated, "evaluate_every": 3} | options

    def before(step: int, client: Any) -> None:
        if step == spoil_at + 1:
            with torch.no_grad():
                for parameter in loop.model.parameters():
                    parameter.add_(5.0)

    loop.before = before
    loop.run(line, steps)
    return loop


def test_a_loop_has_its_best_weights_after_the_last_poll() -> None:
    line, seen = FakeLink(ASKED), {}
    loop = Loop()

    def before(step: int, client: Any) -> None:
        seen[step - 1] = loop.weights()
        if step == AT + 1:
            with torch.no_grad():
                for parameter in loop.model.parameters():
                    parameter.add_(5.0)

    with oven.connect(
        model=loop.model,
        optimizer=loop.optimizer,
        max_steps=STEPS,
        evaluate=loop.evaluated,
        evaluate_every=3,
        link=line,
    ) as client:
        for step in range(1, STEPS + 1):
            before(step, client)
            client.observe(step, {"loss": loop.step()})
            client.poll()
        best = next(step for step in (0, 3, 6) if f"of step {step}: " in line.receipts()[-1].reason)
        assert equal(loop.weights(), seen[best]), "before the loop's own last lines"
    receipt = last_word(line)
    assert receipt.status == "applied" and receipt.step == STEPS == client.step
    readings = [seen.metrics["eval/loss"] for seen in line.observed() if "eval/loss" in seen.metrics]
    assert metrics_at_the_end(line)["eval/loss"] == min(readings)


def test_observing_a_loop_changes_no_bit_and_adds_no_evaluation() -> None:
    loop = looped(line := FakeLink(), spoil_at=-1)
    state = torch.get_rng_state(), random.getstate()
    alone = Loop()
    alone.alone()
    assert "run.best" in announced(line) and equal(loop.weights(), alone.weights())
    assert torch.equal(state[0], torch.get_rng_state()) and state[1] == random.getstate()
    assert [seen.step for seen in line.observed() if "eval/loss" in seen.metrics] == [0, 3, 6, 9, 12]


def test_a_loop_that_is_stopped_ends_with_its_best_and_one_that_a_signal_ends_with_its_last() -> None:
    def ended(after: int, word: str) -> tuple[Receipt, list[bool]]:
        line, loop, unchanged = FakeLink(ASKED), Loop(), []
        with oven.connect(model=loop.model, optimizer=loop.optimizer, evaluate=loop.evaluated, link=line) as client:
            for step in range(1, STEPS + 1):
                if step == 2:
                    with torch.no_grad():
                        for parameter in loop.model.parameters():
                            parameter.add_(5.0)
                client.observe(step, {"loss": loop.step()})
                before = loop.weights()
                if step == after and word == "SIGTERM":
                    client.request_stop(word)
                elif step == after:
                    line.incoming.append(decision("run.stop", None, number=9, apply_at=step + 1))
                client.poll()
                if client.stopping:
                    unchanged.append(equal(before, loop.weights()))
                    break
        return last_word(line), unchanged

    receipt, same = ended(5, "run.stop")
    assert receipt.reason.startswith("restored the weights of step 0") and same == [False]
    receipt, same = ended(5, "SIGTERM")
    assert (receipt.status, same) == ("skipped", [True])
    assert receipt.reason == "kept the last weights, because SIGTERM leaves no time to evaluate"


def test_a_run_that_is_held_keeps_its_last_weights() -> None:
    line, loop = FakeLink(ASKED), Loop()
    with oven.connect(model=loop.model, optimizer=loop.optimizer, evaluate=loop.evaluated, link=line) as client:
        for step in range(1, 5):
            client.observe(step, {"loss": loop.step()})
            if step == 4:
                line.incoming += [
                    OperatorCommand(id="h", action="hold", reason="look"),
                    OperatorCommand(id="s", action="stop"),
                ]
            client.poll()
    assert last_word(line).reason == "kept the last weights, because the run is held (look)"


def test_a_run_that_fails_keeps_its_last_weights_and_reads_nothing() -> None:
    line, loop = FakeLink(ASKED), Loop()
    client = oven.connect(model=loop.model, optimizer=loop.optimizer, evaluate=loop.evaluated, link=line)
    for step in range(1, 5):
        client.observe(step, {"loss": loop.step()})
        client.poll()
    client.close("failed", detail="ZeroDivisionError")
    assert [receipt.decision_id != "" for receipt in line.receipts()] == [True]


def test_an_evaluation_that_raises_at_the_end_is_reported_and_the_run_ends_cleanly() -> None:
    line, loop = FakeLink(ASKED), Loop()
    calls = []

    def evaluate() -> dict[str, float]:
        calls.append(1)
        if len(calls) > 2:
            raise OSError("the held-out file is gone")
        return {"eval/loss": float(len(calls))}

    with oven.connect(
        model=loop.model, optimizer=loop.optimizer, evaluate=evaluate, evaluate_every=3, link=line
    ) as client:
        for step in range(1, 6):
            client.observe(step, {"loss": loop.step()})
            client.poll()
    assert last_word(line).status == "rejected" and "the held-out file is gone" in last_word(line).reason
    assert math.isclose(metrics_at_the_end(line)["eval/loss"], 2.0)
