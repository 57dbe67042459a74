"""For the workers of ranks_job: a Trainer on several ranks, alone, with a trial, and with its change made directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.support.attached import Toy, rows, trainer
from tests.support.trial_driver import Change, DrivenTrainer, Driver
from transformers import set_seed

from oven_learner import ranks
from oven_learner.hf.attach import attach
from oven_learner.ranks import SilentLink
from oven_learner.testing import FakeLink

AT, STEPS = 5, 4
"""The epochs of two ranks end after 7 steps."""


class Dropping(Toy):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))


def runs(folder: Path) -> dict[str, Any]:
    """What each of them reached on this rank, and what the branches measured."""
    alone, _ = _run(folder)
    directly, _ = _run(folder, change_at=AT)
    control, driver = _run(folder, trial=True)
    changed, _ = _run(folder, trial=True, keep=0)
    assert driver is not None
    return {
        "alone": alone.seen[12],
        "directly": directly.seen[12],
        "control": control.seen[12],
        "changed": changed.seen[12],
        "same": [alone.seen == control.seen, directly.seen == changed.seen],
        "readings": driver.readings,
    }


def _run(
    folder: Path, change_at: int | None = None, trial: bool = False, keep: int | None = None
) -> tuple[DrivenTrainer, Driver | None]:
    set_seed(4)
    made = trainer(folder / "out", model=Dropping(), data=rows(52), ddp_backend="gloo", logging_steps=100)
    attached = attach(made, link=FakeLink() if ranks.rank() == 0 else SilentLink())

    def change() -> None:
        assert attached.actuators.apply("optimizer.lr_scale", 2.0).status == "applied"

    driver = Driver(attached.branch, at=AT, steps=STEPS, changes=[change], keep=keep) if trial else None
    watch = DrivenTrainer(made, driver or (Change(change_at, change) if change_at is not None else None))
    made.add_callback(watch)
    made.train()
    assert driver is None or driver.over
    return watch, driver
