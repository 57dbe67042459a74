"""Which checkpoints count, which are gone back to, and what is said of those that cannot be gone on from."""

from __future__ import annotations

import functools
import itertools
import logging
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, equal, leave_no_memory, trainer, weights

from oven_core.errors import ConfigError
from oven_core.protocol.messages import Receipt, RunEnded, RunStarted
from oven_learner.hf.attach import attach
from oven_learner.hf.callback import Attachment
from oven_learner.link.resume_state import ResumeState
from oven_learner.rollback import checkpoint_record, disk_checkpoints
from oven_learner.rollback.checkpoint_record import Record
from oven_learner.testing import FakeLink
from oven_runs.home import relaunch
from oven_runs.home.relaunch import LearnerRelaunch, Relaunch

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def written(output: Path, step: int, tick: int | None = None, run: str = "r", training: str = "1", **more: Any) -> Path:
    folder = output / f"checkpoint-{step}"
    checkpoint_record.begin(folder)
    (folder / "model.safetensors").write_bytes(b"w" * 64)
    (folder / "trainer_state.json").write_text("{}")
    record = Record(
        run=run, training=training, incarnation=1, n=1, tick=step if tick is None else tick, step=step, trained=step,
        fresh=True, **{"own": False, "world": 1, "model": {"w": (4, 2)}, **more},
    )  # fmt: skip
    checkpoint_record.finish(folder, record)
    return folder


def test_a_checkpoint_counts_once_its_record_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-3"
    checkpoint_record.begin(folder)
    (folder / "trainer_state.json").write_text("{}")
    assert "never finished" in checkpoint_record.find_defect(folder)
    assert written(tmp_path, 3) == folder and not checkpoint_record.find_defect(folder)
    checkpoint_record.begin(folder)  # it is written over
    assert checkpoint_record.read(folder) is None and "never finished" in checkpoint_record.find_defect(folder)


def test_the_newest_checkpoint_is_by_tick_and_not_abandoned(tmp_path: Path) -> None:
    written(tmp_path, 10, 10)
    written(tmp_path, 20, 20)
    written(tmp_path, 30, 30, run="other")
    written(tmp_path, 12, 25)  # after a rollback from 20 to 10
    assert checkpoint_record.find_newest(tmp_path, "r", "1") is not None
    assert [path.name for path, _ in checkpoint_record.complete_checkpoints(tmp_path, "r", "1")] == [
        "checkpoint-10", "checkpoint-12", "checkpoint-20"
    ]  # fmt: skip
    assert checkpoint_record.checkpoint_to_resume(tmp_path, "r", "1") == tmp_path / "checkpoint-12"
    newest = checkpoint_record.find_newest(tmp_path, "r", "1", tick=24)
    assert newest is not None and newest[0].name == "checkpoint-20"
    checkpoint_record.abandon(tmp_path, "r", "1", 10, "rolled back")
    assert checkpoint_record.checkpoint_to_resume(tmp_path, "r", "1") == tmp_path / "checkpoint-10"
    assert not checkpoint_record.find_defect(tmp_path / "checkpoint-20"), "whole it is"


def test_incomplete_checkpoints_are_skipped(tmp_path: Path) -> None:
    written(tmp_path, 1)
    (written(tmp_path, 2) / "model.safetensors").write_bytes(b"w" * 63)
    (written(tmp_path, 3) / "model.safetensors").unlink()
    (written(tmp_path, 4) / checkpoint_record.INCOMPLETE_MARKER).touch()
    (written(tmp_path, 5) / checkpoint_record.RECORD).write_text('{"v": 1')
    assert checkpoint_record.checkpoint_to_resume(tmp_path, "r", "1") == tmp_path / "checkpoint-1"
    (tmp_path / "checkpoint-1" / "trainer_state.json").unlink()
    with pytest.raises(ConfigError, match=r"no checkpoint in .* can be resumed"):
        checkpoint_record.checkpoint_to_resume(tmp_path, "r", "1")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "model.safetensors").write_bytes(b"w"), r"has 1 bytes, but had 64 .*resume from checkpoint-1"),
        (lambda f: (f / "model.safetensors").unlink(), r"model.safetensors is missing; it had 64 bytes"),
        (
            lambda f: (f / checkpoint_record.INCOMPLETE_MARKER).touch(),
            r"was never finished .*; resume from checkpoint-1",
        ),
        (lambda f: (f / checkpoint_record.RECORD).write_text("{"), r"oven.json cannot be read"),
        (lambda f: written(f.parent, 9, run="calm-otter"), r"run 'calm-otter', but this is run 'r'; .*--resume"),
        (lambda f: written(f.parent, 9, model={"w": (4, 3)}), r"another model: w is 4×3 in the checkpoint and 4×2 in"),
        (lambda f: written(f.parent, 9, model={"v": (1,)}), r"v is 1 in the checkpoint and missing .*; w is missing"),
    ],
)  # fmt: skip
def test_an_unusable_checkpoint_names_the_value_and_the_remedy(tmp_path: Path, spoil: Any, message: str) -> None:
    written(tmp_path, 1)
    folder = written(tmp_path, 9)
    assert checkpoint_record.read_for_resume(folder, "r", {"w": (4, 2)}) is not None
    spoil(folder)
    with pytest.raises(ConfigError, match=message):
        checkpoint_record.read_for_resume(folder, "r", {"w": (4, 2)})


def test_a_run_without_progress_is_given_up_with_the_remedy(tmp_path: Path) -> None:
    lines: list[str] = []

    def sends_back(reached: int, trained: int) -> None:
        order = Relaunch(
            checkpoint="out/checkpoint-40",
            training="1",
            step=40,
            reached=reached,
            trained=trained,
            reason="rolled back",
        )
        relaunch.write(tmp_path, order)

    sends_back(50, 50)  # left by an earlier stack: the first learner takes it up, or dies before
    learner = LearnerRelaunch(tmp_path, "oven-controller run --resume --run r -- python train.py", lines.append)
    assert learner.next_checkpoint() is None and not lines
    for trained in (60, 70, 80):
        sends_back(60, trained)
        assert learner.next_checkpoint() == "out/checkpoint-40"
    assert lines == ["rolled back; the learner is restarted"] * 3
    assert learner.next_checkpoint() is None, "it died before it had gone on"
    sends_back(61, 90)
    assert learner.next_checkpoint() == "out/checkpoint-40", "a step further than ever"
    for trained in (100, 110, 120):
        sends_back(55, trained)
        last = learner.next_checkpoint()
    assert last is None and "3 rollbacks in a row got no further than step 61" in lines[-1]
    assert "`oven-controller run --resume --run r -- python train.py` continues from out/checkpoint-40" in lines[-1]
    relaunch.path_in(tmp_path).write_text("{")
    assert learner.next_checkpoint() is None and "remove it to continue from the newest checkpoint" in lines[-1]


def test_an_interrupted_save_leaves_no_usable_checkpoint(tmp_path: Path) -> None:
    job = trainer(tmp_path, save_strategy="steps", save_steps=4, max_steps=8)
    attach(job, link=FakeLink())
    inside: Any = job
    whole = inside._save_optimizer_and_scheduler

    def cut(folder: str) -> None:
        if folder.endswith("checkpoint-8"):
            raise KeyboardInterrupt
        whole(folder)

    inside._save_optimizer_and_scheduler = cut
    with pytest.raises(KeyboardInterrupt):
        job.train()
    assert (tmp_path / "checkpoint-8" / "model.safetensors").is_file()
    with pytest.raises(ConfigError, match=r"checkpoint-8 was never finished .*; resume from checkpoint-4"):
        checkpoint_record.read_for_resume(tmp_path / "checkpoint-8", "", {})
    assert checkpoint_record.checkpoint_to_resume(tmp_path, "", "1") == tmp_path / "checkpoint-4"


class Wide(torch.nn.Module):
    """Another shape than the toy's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        guess = self.body(x)
        return {"loss": torch.nn.functional.mse_loss(guess, labels), "logits": guess}


def test_another_model_or_a_truncated_file_is_refused_before_training(tmp_path: Path) -> None:
    first = trainer(tmp_path, save_strategy="steps", save_steps=4)
    attach(first, link=FakeLink())
    first.train()
    wider, line = trainer(tmp_path, model=Wide()), FakeLink()
    attach(wider, link=line)
    with pytest.raises(ConfigError, match=r"body.0.weight is 8×4 in the checkpoint and 9×4 in the trainer"):
        wider.train(resume_from_checkpoint=True)
    assert not line.sent, "nothing was announced"
    (tmp_path / "checkpoint-12" / "optimizer.pt").write_bytes(b"")
    again, line = trainer(tmp_path), FakeLink()
    attach(again, link=line)
    with pytest.raises(ConfigError, match=r"optimizer.pt has 0 bytes, but had \d+"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    again.train(resume_from_checkpoint=True)
    assert line.observed()[0].step == 9, "True means the newest that is whole"


class Disk:
    """A run whose model is too large to copy, and whose launcher starts it again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.output = folder, folder / "out"
        self.charge_rollbacks = False
        leave_no_memory(monkeypatch)
        monkeypatch.setattr(disk_checkpoints, "seconds_to_write", lambda size, folder: 1e9)  # none comes by itself
        monkeypatch.setenv("OVEN_RUN_DIR", str(folder))
        monkeypatch.setenv(relaunch.SUPPORT_VARIABLE, "1")

    def incarnation(
        self, plan: Any = None, past: ResumeState | None = None, **settings: Any
    ) -> tuple[Any, FakeLink, Attachment]:
        training = settings.pop("training", None)
        job, line = trainer(self.output, save_strategy="steps", save_steps=4, **settings), FakeLink(plan, past)
        return job, line, attach(job, link=line, training=training, charge_rollbacks=self.charge_rollbacks)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


@pytest.mark.parametrize("charged", [True, False])
def test_a_rollback_by_restart_is_answered_and_resumed(disk: Disk, charged: bool) -> None:
    disk.charge_rollbacks = charged
    job, line, _ = disk.incarnation({6: ("optimizer.lr_scale", 0.5), 10: ("run.rollback", 7.0)})
    with pytest.raises(SystemExit) as exit_info:
        job.train()
    assert exit_info.value.code == relaunch.EXIT_CODE
    receipt, end = line.receipts()[-1], line.sent[-1]
    assert (receipt.actuator, receipt.status, receipt.before, receipt.after) == ("run.rollback", "applied", 10.0, 4.0)
    assert isinstance(end, RunEnded) and (end.reason, end.step) == ("stopped", 4)
    assert end.detail == "rolled back from step 10 to step 4: continues from checkpoint-4 in the next incarnation"
    newest = checkpoint_record.all_checkpoints(disk.output)[-1]
    assert newest.name == "checkpoint-8", "the state before the rollback was not saved"
    before = relaunch.read(disk.folder)
    assert before is not None and (before.step, before.reached, before.trained) == (4, 10, 10)

    past = ResumeState(incarnation=1, tick=10, values={"1": {"optimizer.lr_scale": 0.5}})
    again, line, _ = disk.incarnation(past=past)
    again.train()
    started = line.sent[0]
    assert isinstance(started, RunStarted)
    assert (started.incarnation, started.tick, started.step) == (2, 10, 4)
    assert {spec.name: spec.value for spec in started.actuators}["optimizer.lr_scale"] == 0.5, (
        "knobs are not rolled back"
    )
    ticks = range(11, 13) if charged else range(11, 19)
    assert [(seen.tick, seen.step) for seen in line.observed()] == [(tick, tick - 6) for tick in ticks]
    assert line.observed()[-1].progress == (0.5 if charged else 1.0)
    assert relaunch.read(disk.folder) is None, "it is done with"


def test_without_an_old_enough_checkpoint_the_run_starts_from_the_beginning(disk: Disk) -> None:
    straight, ran, _ = disk.incarnation()
    straight.args.output_dir = str(disk.folder / "straight")
    straight.train()
    job, line, _ = disk.incarnation({3: ("run.rollback", 2.0)})
    with pytest.raises(SystemExit):
        job.train()
    assert line.receipts()[-1].after == 0.0
    again, line, _ = disk.incarnation(past=ResumeState(incarnation=1, tick=3))
    again.train(resume_from_checkpoint=True)  # as the script says each time
    assert [seen.step for seen in line.observed()] == [seen.step for seen in ran.observed()] == list(range(1, 13))
    assert equal(weights(straight), weights(again)), "as if nothing had been"


def test_a_resumed_run_skips_abandoned_checkpoints(disk: Disk) -> None:
    job, _, _ = disk.incarnation({10: ("run.rollback", 7.0)})
    with pytest.raises(SystemExit):
        job.train()
    relaunch.remove(disk.folder)  # as if the next incarnation had died after its start
    again, line, _ = disk.incarnation(past=ResumeState(incarnation=2, tick=10))
    again.train(resume_from_checkpoint=True)
    assert line.observed()[0].step == 5, "and not 9, by the checkpoint of the highest step"


def test_without_a_launcher_there_is_no_rollback_by_restart(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(relaunch.SUPPORT_VARIABLE)
    job, line, _ = disk.incarnation({3: ("run.rollback", 2.0)})
    job.train()
    assert [r.status for r in line.receipts()] == ["rejected"]
    started = line.sent[0]
    assert isinstance(started, RunStarted)
    assert "run.rollback" not in {spec.name for spec in started.actuators}


def test_checkpoints_for_rollback_are_taken_regularly_and_only_the_newest_stay(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_checkpoints, "seconds_to_write", lambda size, folder: 0.0)
    job = trainer(disk.output, max_steps=40)
    line = FakeLink({38: ("run.checkpoint", None)})
    clock = itertools.count(time.monotonic(), 1000)  # what a save took is told by the real one
    timed = functools.partial(disk_checkpoints.DiskCheckpoints, clock=lambda: next(clock))
    monkeypatch.setattr("oven_learner.hf.trainer_rollback.DiskCheckpoints", timed)
    attach(job, link=line)
    job.train()
    records = {path.name: checkpoint_record.read(path) for path in checkpoint_record.all_checkpoints(disk.output)}
    own = [name for name, record in records.items() if record is not None and record.own]
    for_rollback = [name for name, record in records.items() if record is not None and not record.own]
    assert len(own) == disk_checkpoints.MAX_CHECKPOINTS and for_rollback == ["checkpoint-38"]


def test_a_full_disk_stops_no_training(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_checkpoints, "seconds_to_write", lambda size, folder: 0.0)
    monkeypatch.setattr(disk_checkpoints, "MIN_FREE_FACTOR", 1e18)
    job = trainer(disk.output, max_steps=12)
    attach(job, link=FakeLink())
    with caplog.at_level(logging.WARNING, "oven.learner"):
        job.train()
    assert not checkpoint_record.all_checkpoints(disk.output) and "GB are free" in caplog.text


def test_no_training_resumes_from_another_trainings_checkpoint(tmp_path: Path) -> None:
    written(tmp_path, 8, 8, training="1")
    assert checkpoint_record.checkpoint_to_resume(tmp_path, "r", "2") is None
    assert checkpoint_record.checkpoint_to_resume(tmp_path, "s", "2") == tmp_path / "checkpoint-8", (
        "another run's, as ever"
    )
    written(tmp_path, 4, 12, training="2")
    assert checkpoint_record.checkpoint_to_resume(tmp_path, "r", "1") == tmp_path / "checkpoint-8"
    assert checkpoint_record.checkpoint_to_resume(tmp_path, "r", "2") == tmp_path / "checkpoint-4"
    checkpoint_record.abandon(tmp_path, "r", "2", 0, "rolled back")
    assert (
        checkpoint_record.find_newest(tmp_path, "r", "1") is not None
        and checkpoint_record.find_newest(tmp_path, "r", "2") is None
    )


def test_two_trainings_in_one_folder_roll_back_only_to_their_own_checkpoints(disk: Disk) -> None:
    """As a script with two trainers, in two processes: the second one's rollback sends only that back."""
    sft, line, _ = disk.incarnation(max_steps=6, training="sft")
    sft.train()
    past = ResumeState(incarnation=1, tick=6, values={"sft": {"optimizer.lr_scale": 0.5}}, training="sft")
    grpo, line, _ = disk.incarnation({9: ("run.rollback", 7.0)}, past=past, max_steps=12, training="grpo")
    with pytest.raises(SystemExit):
        grpo.train()
    receipt = line.receipts()[-1]
    assert (receipt.status, receipt.after) == ("applied", 0.0), "tick 6 is the other training's"
    order = relaunch.read(disk.folder)
    assert order is not None and (order.training, order.checkpoint) == ("grpo", relaunch.START)

    past = ResumeState(incarnation=2, tick=9, training="grpo")
    sft, line, _ = disk.incarnation(past=past, max_steps=6, training="sft")
    sft.train()
    assert line.observed()[0].step > 6, "it was done, and does not begin anew"
    grpo, line, _ = disk.incarnation(past=past, max_steps=4, training="grpo")
    grpo.train()
    assert line.observed()[0].step == 1 and relaunch.read(disk.folder) is None


def test_a_rollback_without_a_checkpoint_is_rejected(disk: Disk) -> None:
    first = trainer(disk.output, save_strategy="steps", save_steps=4, max_steps=4)
    first.train()
    job, line, _ = disk.incarnation({2: ("run.rollback", 1.0)}, max_steps=7)
    job.train(resume_from_checkpoint=str(disk.output / "checkpoint-4"))
    [receipt] = [message for message in line.sent if isinstance(message, Receipt)]
    assert receipt.status == "rejected" and "no complete checkpoint" in receipt.reason


def test_latest_means_the_newest_checkpoint_of_this_run(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(relaunch.RESUME_FROM, relaunch.LATEST)
    job, line, _ = disk.incarnation(max_steps=6, lr_scheduler_type="constant")
    job.train()
    assert line.observed()[0].step == 1, "there was none"
    again, line, _ = disk.incarnation(max_steps=8, lr_scheduler_type="constant")
    again.train()
    assert line.observed()[0].step == 7
    own, line, _ = disk.incarnation(max_steps=8, lr_scheduler_type="constant")
    own.train(resume_from_checkpoint=str(disk.output / "checkpoint-4"))
    assert line.observed()[0].step == 5, "a path of the script's goes first"
    assert equal(weights(own), weights(again))


def test_a_missing_checkpoint_lists_those_beside_it(tmp_path: Path) -> None:
    written(tmp_path, 5)
    with pytest.raises(ConfigError, match=r"checkpoint-6; checkpoints in the same folder: checkpoint-5"):
        checkpoint_record.read_for_resume(tmp_path / "checkpoint-6", "r", {})
