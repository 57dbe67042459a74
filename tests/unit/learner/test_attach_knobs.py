"""attach and what it lets be changed: learning rate, clipping, rollback, stop, hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, Toy, equal, leave_no_memory, trainer, weights
from transformers import Trainer, TrainerCallback

from oven_core.protocol.messages import RunEnded, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.actuators import Actuators
from oven_learner.hf.attach import attach
from oven_learner.link.resume_state import ResumeState
from oven_learner.optim.lr_scale import LearningRateScale
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def rates(line: FakeLink) -> list[float]:
    return line.series("learning_rate")


def user_rates(folder: Path, settings: dict[str, Any]) -> list[float]:
    job, line = trainer(folder, **settings), FakeLink()
    attach(job, link=line)
    job.train()
    return rates(line)


def test_resuming_without_decisions_equals_the_uninterrupted_run(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 6}
    straight = trainer(tmp_path / "job", **settings)
    attach(straight, link=FakeLink())
    straight.train()
    resumed = trainer(tmp_path / "job", **settings)
    attach(resumed, link=FakeLink(past=ResumeState(1, 6, 9, {})))
    resumed.train(resume_from_checkpoint=str(tmp_path / "job" / "checkpoint-6"))
    assert equal(weights(straight), weights(resumed))


def test_a_restart_from_scratch_sets_the_scale_of_the_log_again(tmp_path: Path) -> None:
    own = user_rates(tmp_path / "own", {})
    job, line = trainer(tmp_path / "again"), FakeLink(past=ResumeState(1, 12, 99, {"1": {"optimizer.lr_scale": 0.5}}))
    attach(job, link=line)
    job.train()
    assert rates(line) == pytest.approx([rate * 0.5 for rate in own], rel=1e-7)


def test_parameter_groups_keep_their_own_rates(tmp_path: Path) -> None:
    def made(name: str) -> tuple[Trainer, torch.optim.Optimizer]:
        model = Toy()
        groups = [{"params": [p], "lr": 0.001 * (n + 1)} for n, p in enumerate(model.parameters())]
        optimizer = torch.optim.AdamW(groups)
        settings: dict[str, Any] = {"model": model, "optimizers": (optimizer, None), "lr_scheduler_type": "constant"}
        return trainer(tmp_path / name, save_strategy="steps", save_steps=6, **settings), optimizer

    job, optimizer = made("job")
    attach(job, link=FakeLink({2: ("optimizer.lr_scale", 0.5)}))
    job.train()
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.0005, 0.001, 0.0015, 0.002])
    resumed, optimizer = made("job")
    attachment = attach(resumed, link=FakeLink({8: ("optimizer.lr_scale", 1.0)}, past=ResumeState(1, 6, 9, {})))
    resumed.train(resume_from_checkpoint=str(tmp_path / "job" / "checkpoint-6"))
    assert attachment.actuators.read("optimizer.lr_scale") == pytest.approx(1.0)
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.001, 0.002, 0.003, 0.004])


@pytest.mark.parametrize("kind", ["one cycle", "sequential", "exponential", "cyclic", "none"])
def test_schedulers_of_torch_itself_keep_the_scale(kind: str) -> None:
    def run(scale: float) -> list[float]:
        from torch.optim import lr_scheduler as s

        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        made: dict[str, Any] = {
            "one cycle": lambda: s.OneCycleLR(optimizer, max_lr=0.1, total_steps=20),
            "sequential": lambda: s.SequentialLR(
                optimizer, [s.LinearLR(optimizer, 0.1, total_iters=4), s.StepLR(optimizer, 3)], milestones=[6]
            ),
            "exponential": lambda: s.ExponentialLR(optimizer, 0.9),
            "cyclic": lambda: s.CyclicLR(optimizer, 0.01, 0.1, step_size_up=4, cycle_momentum=False),
            "none": lambda: None,
        }
        scheduler = made[kind]()
        rate = LearningRateScale(optimizer, scheduler)
        rates = []
        for step in range(12):
            if step == 4:
                rate.write(scale)
            rates.append(rate.rates()[0])
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        assert rate.read() == pytest.approx(scale)
        return rates

    own, scaled = run(1.0), run(0.5)
    assert scaled == pytest.approx(own[:4] + [value * 0.5 for value in own[4:]], rel=1e-6)


def test_a_decision_on_grad_clip_changes_the_clipping(tmp_path: Path) -> None:
    after: list[float] = []

    class Norms(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kw: Any) -> None:
            after.append(float(torch.nn.utils.get_total_norm([p.grad for p in kw["model"].parameters()])))

    job, line = trainer(tmp_path, max_grad_norm=0.1), FakeLink({4: ("grad.clip", 0.02)})
    job.add_callback(Norms())
    attach(job, link=line)
    job.train()
    assert line.receipts()[0].after == pytest.approx(0.02)
    assert after == pytest.approx([0.1] * 4 + [0.02] * 8, rel=1e-3)
    assert min(line.series("grad_norm")) > 0.1, "what is published is the norm before clipping"


def test_a_rollback_restores_weights_optimizer_and_step_and_keeps_the_scale(tmp_path: Path) -> None:
    states: dict[int, tuple[list[torch.Tensor], Any]] = {}

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            optimizer: Any = getattr(job.optimizer, "optimizer", job.optimizer)
            moments = [s["exp_avg_sq"].clone() for s in optimizer.state.values()]
            states[len(line.observed())] = (weights(job), (job.state.global_step, moments))

    line = FakeLink({6: ("optimizer.lr_scale", 0.5), 9: ("run.rollback", 5.0)})
    own = user_rates(tmp_path / "own", {})
    job = trainer(tmp_path / "job", logging_steps=2)
    job.add_callback(Watch())
    attach(job, link=line)
    job.train()
    assert [seen.step for seen in line.observed()] == [*range(1, 10), *range(6, 13)]
    assert [seen.tick for seen in line.observed()] == list(range(1, 17))
    (now, (step, moments)), (then, (step_then, moments_then)) = states[9], states[5]
    assert step == step_then == 5
    assert equal(now, then) and equal(moments, moments_then)
    wanted = own[:6] + [rate * 0.5 for rate in own[6:9] + own[5:12]]
    assert rates(line) == pytest.approx(wanted, rel=1e-7)
    back = line.receipts()[-1]
    assert (back.actuator, back.status, back.before, back.after) == ("run.rollback", "applied", 9.0, 5.0)
    logged = [entry["loss"] for entry in job.state.log_history if "loss" in entry]
    assert max(logged) < 100 and len(logged) >= 5, "the trainer's own log goes on with sane figures"


def test_undoing_a_rollback_restores_weights_optimizer_and_step(tmp_path: Path) -> None:
    begun: list[list[torch.Tensor]] = []
    ended: list[list[torch.Tensor]] = []

    def held() -> list[torch.Tensor]:
        optimizer: Any = getattr(job.optimizer, "optimizer", job.optimizer)
        return weights(job) + [state["exp_avg_sq"].clone() for state in optimizer.state.values()]

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            begun.append(held())

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            ended.append(held())

    line = FakeLink({8: ("run.rollback", 0.0), 10: ("run.undo_rollback", None)})
    job = trainer(tmp_path, logging_steps=2)
    job.add_callback(Watch())
    attach(job, link=line)
    job.train()
    assert [seen.step for seen in line.observed()] == [*range(1, 9), 1, 2, 9, 10, 11, 12]
    assert [(receipt.before, receipt.after) for receipt in line.receipts()] == [(8.0, 0.0), (2.0, 8.0)]
    assert equal(begun[10], ended[7]) and not equal(begun[10], ended[9])
    logged = [entry["loss"] for entry in job.state.log_history if "loss" in entry]
    assert min(logged) > 0 and max(logged) < 100, "the trainer's own log goes on with sane figures"


def test_a_rollback_leaves_the_users_own_actuators_alone(tmp_path: Path) -> None:
    """A weight decay lives in the optimizer's state, which a rollback restores."""
    job, line = trainer(tmp_path), FakeLink({6: ("decay", 0.5), 9: ("run.rollback", 0.0)})

    def groups() -> list[dict[str, Any]]:
        optimizer: Any = job.optimizer
        return list(optimizer.param_groups) if optimizer else [{"weight_decay": 0.0}]

    def decay(value: float) -> None:
        for group in groups():
            group["weight_decay"] = value

    actuators = Actuators()
    actuators.scalar("decay", lambda: float(groups()[0]["weight_decay"]), decay, low=0, high=1)
    attach(job, link=line, actuators=actuators)
    job.train()
    assert [r.status for r in line.receipts()] == ["applied", "applied"]
    assert {group["weight_decay"] for group in groups()} == {0.5}


def test_a_stop_saves_a_checkpoint_and_ends(tmp_path: Path) -> None:
    job, line = trainer(tmp_path, save_strategy="no"), FakeLink({4: ("run.stop", None)})
    attach(job, link=line)
    job.train()
    assert job.state.global_step == 4
    assert (tmp_path / "checkpoint-4" / "trainer_state.json").is_file()
    end = line.sent[-1]
    assert isinstance(end, RunEnded) and (end.reason, end.step) == ("stopped", 4)


def test_a_hold_waits_between_steps_and_a_resume_changes_nothing_else(tmp_path: Path) -> None:
    plain = trainer(tmp_path / "plain")
    plain.train()
    job, line = trainer(tmp_path / "held"), FakeLink()
    line.incoming.extend([OperatorCommand(id="1", action="hold")])
    waited: list[int] = []
    receive = line.receive

    def resume_later() -> Any:
        waited.append(len(line.observed()))
        if len(waited) == 6:
            return OperatorCommand(id="2", action="resume")
        return receive()

    line.receive = resume_later  # type: ignore[method-assign]
    attach(job, link=line)
    job.train()
    assert waited[:6] == [1] * 6, "no step while it is held"
    assert equal(weights(plain), weights(job))


def test_a_model_too_large_to_copy_has_no_rollback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_no_memory(monkeypatch)
    job, line = trainer(tmp_path), FakeLink({3: ("run.rollback", 0.0)})
    attach(job, link=line)
    job.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    offered = {spec.name for spec in run.actuators}
    assert "run.rollback" not in offered and "run.checkpoint" in offered, "a checkpoint on disk needs no copy"
    assert line.receipts()[0].status == "rejected"


def test_a_failing_snapshot_does_not_stop_training_and_blocks_a_risky_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.decisions import decide

    def full(*_: object) -> Any:
        raise MemoryError("no room")

    monkeypatch.setattr("oven_learner.hf.trainer_rollback.take_snapshot", full)
    job, line = trainer(tmp_path), FakeLink()
    line.incoming.append(decide(0.5, actuator="optimizer.lr_scale", snapshot_first=True))
    attach(job, link=line)
    job.train()
    assert len(line.observed()) == 12
    assert line.receipts()[0].status == "rejected" and "no room" in line.receipts()[0].reason


def test_a_rollback_to_the_start_undoes_everything(tmp_path: Path) -> None:
    line = FakeLink({11: ("run.rollback", 0.0)})
    job = trainer(tmp_path)
    before = weights(job)
    seen: list[list[torch.Tensor]] = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append(weights(job))

    job.add_callback(Watch())
    attach(job, link=line)
    job.train()
    assert equal(seen[11], before) and not equal(seen[10], before)
