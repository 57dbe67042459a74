"""`data/repeated`: of the rows that a step trains on, how many the run has read before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY, trainer
from transformers import Trainer

from oven_learner.hf.attach import attach
from oven_learner.hf.hooks.step_hooks import REPEATED
from oven_learner.hf.knobs.mixture import Mixture, ReadRows
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

NAME = REPEATED.name


def by_hand(batches: list[list[float]], known: set[float] | None = None) -> list[float]:
    """With a set of all rows, in place of bits."""
    known, shares = set(known or ()), []
    for batch in batches:
        again = 0
        for row in batch:
            again += row in known
            known.add(row)
        shares.append(again / len(batch))
    return shares


def numbered() -> Mixture:
    """Two datasets, the second with few rows: they come again soon."""
    rows = [{"x": torch.tensor([float(n), 0.0, 0.0, 0.0]), "labels": torch.tensor([0.0])} for n in range(60)]
    return Mixture({"many": rows[:50], "few": rows[50:]}, {"many": 3, "few": 1}, seed=4)


def trained(folder: Path, line: FakeLink, resume: str | None = None, **settings: Any) -> list[list[float]]:
    """The rows of each optimizer step."""
    mixture = numbered()
    job: Trainer = trainer(folder, data=mixture.dataset, **settings)
    attach(job, link=line, mixture=mixture)
    seen: list[list[float]] = []
    step = job.training_step

    def watched(model: Any, inputs: Any, *rest: Any, **more: Any) -> torch.Tensor:
        seen.append(inputs["x"][:, 0].tolist())
        return step(model, inputs, *rest, **more)

    job.training_step = watched  # type: ignore[method-assign]
    job.train(resume_from_checkpoint=resume)
    micro = job.args.gradient_accumulation_steps
    return [[row for part in seen[start : start + micro] for row in part] for start in range(0, len(seen), micro)]


@given(
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.lists(st.integers(0, n - 1), min_size=1))))
)
def test_rows_read_agree_with_a_set_and_survive_saving(case: tuple[int, list[list[int]]]) -> None:
    count, batches = case
    first, second = ReadRows(count), ReadRows(count)
    wanted = by_hand([list(map(float, batch)) for batch in batches])
    for batch, share in zip(batches, wanted, strict=True):
        assert first.mark(batch) == share
    second.restore(first.bits())
    assert torch.equal(second.bits(), first.bits())
    rows = {row for batch in batches for row in batch}
    assert [second.mark([row]) for row in range(count)] == [float(row in rows) for row in range(count)]


def test_rows_of_a_changed_dataset_count_as_unread() -> None:
    first, second = ReadRows(8), ReadRows(9)
    first.mark(range(8))
    second.restore(first.bits())
    assert second.mark(range(9)) == 0.0


@pytest.mark.parametrize("settings", [
    {},
    {"gradient_accumulation_steps": 3, "dataloader_num_workers": 1},
    {"max_steps": -1, "num_train_epochs": 0.9},
], ids=["steps", "accumulated, drawn by a worker", "epochs"])  # fmt: skip
def test_each_step_has_the_share_of_its_own_rows(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Across a skip, which throws away what was drawn ahead, and a rollback in place, which leaves the data."""
    line = FakeLink({4: ("data.skip", 3.0), 7: ("run.rollback", 5.0), 9: ("data.skip", 2.0)})
    seen = trained(tmp_path, line, **settings)
    assert [receipt.status for receipt in line.receipts()] == ["applied"] * 3
    assert line.series(NAME) == pytest.approx(by_hand(seen), abs=1e-9)
    assert max(line.series(NAME)) > 0 and len(seen) > 10


def test_a_checkpoint_restores_the_rows_read(tmp_path: Path) -> None:
    first = FakeLink({3: ("data.skip", 4.0)})
    seen = trained(tmp_path, first, save_strategy="steps", save_steps=6)
    past, checkpoint = ResumeState(1, 6, 99, {}), str(tmp_path / "checkpoint-6")
    again = FakeLink(past=past)
    assert trained(tmp_path, again, checkpoint) == seen[6:]
    assert again.series(NAME) == first.series(NAME)[6:]
