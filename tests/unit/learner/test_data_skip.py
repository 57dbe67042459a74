"""`data.skip`: batches that training passes over, whatever the loader had drawn, across checkpoints and rollbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY, leave_no_memory, trainer
from tests.support.decisions import decide
from tests.unit.learner.test_attach_trl import grpo
from transformers import Trainer

from oven_core.protocol.messages import RunStarted
from oven_learner.hf.attach import attach
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.link.resume_state import ResumeState
from oven_learner.rollback import disk_checkpoints
from oven_learner.testing import FakeLink
from oven_runs.home import relaunch

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

Rows = list[list[float]]


def numbered() -> Mixture:
    rows = [{"x": torch.tensor([float(n), 0.0, 0.0, 0.0]), "labels": torch.tensor([0.0])} for n in range(500)]
    return Mixture({"all": rows}, seed=3)


def batches(count: int, size: int = 4) -> Rows:
    """The data as they lie: the rows of each position."""
    mixture = numbered()
    return [[float(row) for row in mixture.draw(position, size)] for position in range(count)]


def trained(folder: Path, line: FakeLink, resume: str | None = None, **settings: Any) -> Rows:
    """The rows of each optimizer step."""
    mixture = numbered()
    job: Trainer = trainer(folder, data=mixture.dataset, **settings)
    attach(job, link=line, mixture=mixture)
    seen: Rows = []
    step = job.training_step

    def watched(model: Any, inputs: Any, *rest: Any, **more: Any) -> torch.Tensor:
        seen.append(inputs["x"][:, 0].tolist())
        return step(model, inputs, *rest, **more)

    job.training_step = watched  # type: ignore[method-assign]
    job.train(resume_from_checkpoint=resume)
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_training_continues_after_the_skipped_batches(tmp_path: Path, workers: int) -> None:
    line = FakeLink({4: ("data.skip", 3.0), 9: ("data.skip", 1.0)})
    seen = trained(tmp_path, line, dataloader_num_workers=workers)
    data = batches(16)
    assert seen == data[:4] + data[7:12] + data[13:16], (
        "the batch after step 4 is the eighth, though the fifth was drawn"
    )
    assert [(r.status, r.before, r.after) for r in line.receipts()] == [("applied", 4, 7), ("applied", 12, 13)]


@pytest.mark.slow
def test_with_gradient_accumulation_a_batch_is_that_of_a_step(tmp_path: Path) -> None:
    seen = trained(tmp_path, FakeLink({2: ("data.skip", 2.0)}), gradient_accumulation_steps=2, max_steps=4)
    assert [seen[n] + seen[n + 1] for n in range(0, 8, 2)] == [batches(6, 8)[n] for n in (0, 1, 4, 5)]


@pytest.mark.parametrize("settings", [{}, {"max_steps": -1, "num_train_epochs": 0.1}], ids=["steps", "epochs"])
def test_a_run_that_resumes_trains_on_the_same_rows(tmp_path: Path, settings: dict[str, Any]) -> None:
    settings = {"save_strategy": "steps", "save_steps": 6, **settings}
    seen = trained(tmp_path, FakeLink({4: ("data.skip", 5.0), 9: ("data.skip", 2.0)}), **settings)
    past = ResumeState(1, 6, 99, {})
    again = trained(tmp_path, FakeLink({9: ("data.skip", 2.0)}, past), str(tmp_path / "checkpoint-6"), **settings)
    assert again == seen[6:] and len(again) > 5
    later = trained(tmp_path, FakeLink({7: ("data.skip", 4.0)}, past), str(tmp_path / "checkpoint-6"), **settings)
    data = batches(24)
    assert later[:3] == [data[11], data[16], data[17]], "a resumed run counts from where it stands"


def test_a_rollback_in_place_does_not_move_the_data(tmp_path: Path) -> None:
    line = FakeLink({6: ("run.rollback", 0.0), 7: ("data.skip", 4.0)})
    seen = trained(tmp_path, line)
    data = batches(30)
    assert [receipt.status for receipt in line.receipts()] == ["applied", "applied"]
    assert seen == data[:7] + data[11:22]


def test_a_rollback_by_restart_restores_the_data_and_drops_the_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_no_memory(monkeypatch)
    monkeypatch.setattr(disk_checkpoints, "seconds_to_write", lambda size, folder: 1e9)  # none comes by itself
    monkeypatch.setenv("OVEN_RUN_DIR", str(tmp_path))
    monkeypatch.setenv(relaunch.SUPPORT_VARIABLE, "1")
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    line = FakeLink({2: ("data.skip", 3.0)})
    line.incoming.extend(
        decide(value, actuator=actuator, number=number, apply_at=7, expires=99)
        for number, (actuator, value) in {98: ("run.rollback", 5.0), 99: ("data.skip", 4.0)}.items()
    )
    with pytest.raises(SystemExit):
        trained(tmp_path / "out", line, **settings)
    first, back, lost = line.receipts()
    assert [first.status, back.status, lost.status] == ["applied", "applied", "rejected"]
    assert "in the next incarnation; an action would be lost" in lost.reason
    again = FakeLink({7: ("data.skip", 4.0)}, ResumeState(1, 6, 99, {}))
    data = batches(24)
    assert trained(tmp_path / "out", again, **settings)[:5] == [data[7], data[12], data[13], data[14], data[15]]


def test_at_the_last_step_of_an_epoch_a_skip_begins_with_the_next(tmp_path: Path) -> None:
    settings = {"max_steps": -1, "num_train_epochs": 2}
    mixture = Mixture({"all": numbered().dataset[:16]}, seed=3)
    job: Trainer = trainer(tmp_path, data=mixture.dataset, **settings)
    line = FakeLink({3: ("data.skip", 2.0)})  # the loader has drawn the fourth of four by then
    attach(job, link=line, mixture=mixture)
    job.train()
    assert len(line.observed()) == 8, "no step is lost"
    assert [(r.before, r.after) for r in line.receipts()] == [(4, 6)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=6), st.integers(0, 3))
def test_no_position_is_drawn_twice_and_the_state_is_complete(turns: list[tuple[int, int]], ahead: int) -> None:
    mixture, positions, chunk = numbered(), [], 0
    for steps, count in turns:
        for _ in range(steps):
            positions.append(mixture.position(chunk))
            chunk += 1
        for drawn in range(chunk, chunk + ahead):
            mixture.draw(drawn, 4)
        before = mixture.position(chunk)
        mixture.skip(count, chunk)
        assert mixture.position(chunk) == before + count
    assert positions == sorted(set(positions))
    again = numbered()
    again.load_state_dict(mixture.state_dict())
    assert [again.draw(n, 4) for n in range(chunk + 3)] == [mixture.draw(n, 4) for n in range(chunk + 3)]


def test_only_a_mixture_has_data_skip(tmp_path: Path) -> None:
    line = FakeLink()
    job = trainer(tmp_path, max_steps=1)
    attach(job, link=line)
    job.train()
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    assert "data.skip" not in {spec.name for spec in run.actuators}


def test_completions_that_are_reused_are_finished_first(tmp_path: Path) -> None:
    mixture = Mixture({"all": Dataset.from_list([{"prompt": letter} for letter in "abcdefghijklmnop"])}, seed=2)
    rows = numbered_prompts(mixture)
    job: Any = grpo(tmp_path, data=mixture.dataset, num_iterations=2, max_steps=8, generation_batch_size=4)
    line = FakeLink({3: ("data.skip", 2.0)})
    attach(job, link=line, mixture=mixture)
    prompts: list[str] = []
    generate = job._generate_and_score_completions

    def watched(inputs: Any) -> Any:
        prompts.append(inputs[0]["prompt"])
        return generate(inputs)

    job._generate_and_score_completions = watched
    job.train()
    (receipt,) = line.receipts()
    assert receipt.status == "applied" and isinstance(receipt.before, float)
    first = int(receipt.before)
    wanted = rows[:first] + rows[first + 2 :]
    assert prompts == wanted[: len(prompts)] and len(prompts) == 4


def numbered_prompts(mixture: Mixture) -> list[str]:
    twin = Mixture({"all": mixture.dataset}, seed=2)
    return [mixture.dataset[twin.draw(position, 1)[0]]["prompt"] for position in range(12)]


@pytest.mark.parametrize("count", [None, 0.0, 1.5, -3.0, 1e9])
def test_an_invalid_number_of_batches_is_refused(tmp_path: Path, count: float | None) -> None:
    line = FakeLink({1: ("data.skip", count)})
    assert trained(tmp_path, line, max_steps=3) == batches(3)
    (receipt,) = line.receipts()
    assert receipt.status == "rejected" and "pass a whole number from 1" in receipt.reason
