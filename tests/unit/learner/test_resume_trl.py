"""A run that resuming from a checkpoint goes on bit for bit as it would have, where TRL's own resume does not too."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, equal, weights
from tests.unit.learner.test_attach_trl import grpo, sft

from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


class Mixture:
    """State of the user's own, as an actuator might keep."""

    def __init__(self) -> None:
        self.timeline = [0]

    def state_dict(self) -> dict[str, Any]:
        return {"timeline": self.timeline}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.timeline = state["timeline"]


CASES: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "one epoch": (grpo, 3, {"max_steps": 5}),
    "inside a later epoch": (grpo, 10, {"max_steps": 12}),
    "between two epochs": (grpo, 8, {"max_steps": 10}),
    "at a generation": (grpo, 4, {"max_steps": 7, "num_iterations": 2}),
    "inside a generation": (grpo, 19, {"max_steps": 22, "num_iterations": 2}),
    "inside a generation of many batches": (
        grpo,
        2,
        {"max_steps": 5, "steps_per_generation": 6, "gradient_accumulation_steps": 2},
    ),
    "another trainer, inside a later epoch": (sft, 11, {"max_steps": 14}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, save_step, settings = CASES[case]
    settings = {"save_strategy": "steps", "save_steps": save_step, "max_grad_norm": 0.5, **settings}
    straight = made(tmp_path, **settings)
    mixture = Mixture()
    attach(straight, link=FakeLink({1: ("optimizer.lr_scale", 0.5)}), stateful={"mixture": mixture})
    mixture.timeline.append(7)
    straight.train()
    resumed, brought = made(tmp_path, **settings), Mixture()
    line = FakeLink()
    attach(resumed, link=line, stateful={"mixture": brought})
    with caplog.at_level(logging.INFO, "oven.learner"):
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{save_step}"))
    assert [seen.step for seen in line.observed()] == list(range(save_step + 1, settings["max_steps"] + 1))
    assert equal(weights(straight), weights(resumed))
    assert brought.timeline == [0, 7]
    assert "not be bit-for-bit" not in caplog.text and "resuming from" in caplog.text


@pytest.mark.parametrize("case", ["inside a later epoch", "inside a generation"])
def test_the_trainer_alone_resumes_inexactly(tmp_path: Path, case: str) -> None:
    """Or what is saved beside its files could go."""
    made, save_step, settings = CASES[case]
    settings = {"save_strategy": "steps", "save_steps": save_step} | settings
    straight = made(tmp_path, **settings)
    straight.train()
    resumed = made(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{save_step}"))
    assert not equal(weights(straight), weights(resumed))


def test_an_inexact_resume_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = grpo(tmp_path / "plain", save_strategy="steps", save_steps=2, max_steps=2)
    plain.train()
    resumed = grpo(tmp_path / "plain", max_steps=3, ignore_data_skip=True)
    attach(resumed, link=FakeLink())
    resumed.train(resume_from_checkpoint=str(tmp_path / "plain" / "checkpoint-2"))
    assert "saved without the controller" in caplog.text and "ignore_data_skip starts over with the data" in caplog.text
    caplog.clear()
    back = grpo(tmp_path / "back", save_strategy="steps", save_steps=3, max_steps=6)
    attach(back, link=FakeLink({2: ("run.rollback", 0.0)}))
    back.train()
    again = grpo(tmp_path / "back", max_steps=7)
    attach(again, link=FakeLink())
    again.train(resume_from_checkpoint=True)
    assert "rolled back in place by 2 steps" in caplog.text


def test_a_checkpoint_keeps_tensors_and_plain_values_only(tmp_path: Path) -> None:
    """It is read with weights_only: a checkpoint from elsewhere runs no code."""
    job = grpo(tmp_path, save_strategy="steps", save_steps=1, num_iterations=2, max_steps=1)
    attach(job, link=FakeLink(), stateful={"mixture": Mixture()})
    job.train()
    state = torch.load(tmp_path / "checkpoint-1" / "oven-rank-0.pt", weights_only=True)
    assert state["stateful"] == {"mixture": {"timeline": [0]}}
    assert state["generated"] == 1 and state["buffer"][0]["completion_ids"].shape == (4, 4)
