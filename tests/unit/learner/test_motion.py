"""The recipe motion: a skeleton's joints, intents, rewards, and a few steps of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.support.attached import THIRD_PARTY

from oven_learner.policies import checkpoint
from oven_learner.testing import FakeLink
from oven_recipes.motion.intents import EVALUATION_TEXTS, TRAINING_TEXTS
from oven_recipes.motion.rewards import weighted_score
from oven_recipes.motion.run_record import RunRecord
from oven_recipes.motion.settings import MotionSettings, parse_start
from oven_recipes.motion.training import build, new_policy
from oven_recipes.motion.warm_up import synthetic_clips, warm_up, warm_up_loss

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

SMALL: dict[str, Any] = {
    "hidden": 16, "warm_steps": 30, "warm_batch": 16, "max_steps": 3, "intents_per_step": 2, "group_size": 4,
    "embedding": "words", "save_every": 2, "eval_every": 2,
}  # fmt: skip


def test_warm_up_learns_the_clips_and_leaves_the_generator_alone() -> None:
    settings = MotionSettings(**SMALL)
    policy = new_policy(settings, 1)
    torch.manual_seed(0)
    held = synthetic_clips(TRAINING_TEXTS, settings.frames, torch.full((len(TRAINING_TEXTS),), 0.5))
    before, state = float(warm_up_loss(policy, held, TRAINING_TEXTS).detach()), torch.get_rng_state()
    warm_up(policy, settings, (0.3, 0.8), 1)
    assert float(warm_up_loss(policy, held, TRAINING_TEXTS).detach()) < before - 0.5
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_a_diffusion_policy_makes_sensible_clips_after_its_warm_up() -> None:
    pytest.importorskip("diffusers")
    settings = MotionSettings(
        policy="diffusion", embedding="words", hidden=32, frames=16, denoising_steps=4, warm_steps=80, warm_batch=16
    )
    policy = new_policy(settings, 1)

    def held_out() -> float:
        torch.manual_seed(0)
        return float(weighted_score(EVALUATION_TEXTS, policy.sample(EVALUATION_TEXTS, 1).outputs).mean())

    noise = held_out()
    warm_up(policy, settings, (1.0, 1.0), 1)
    assert noise < 0.15 < 0.25 < held_out()


@pytest.mark.parametrize("kind", ["gaussian", pytest.param("diffusion", marks=pytest.mark.slow)])
def test_a_run_leaves_its_files_and_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    if kind == "diffusion":
        pytest.importorskip("diffusers")
    settings = MotionSettings(**{**SMALL, "policy": kind, "warm_steps": 4 if kind == "diffusion" else 30})
    start = parse_start("tuned")
    straight = build(settings, start, 5, tmp_path / "cache", tmp_path)
    record, line = RunRecord(straight, EVALUATION_TEXTS[0], 5), FakeLink()
    straight.train(link=line)
    record.write(tmp_path)
    arrays = numpy.load(tmp_path / "motion.npz")
    assert arrays["start"].shape == arrays["end"].shape == arrays["teacher"].shape == (32, 24, 3)
    assert arrays["reward"].shape == (3,) and arrays["step"].tolist() == [1, 2, 3]
    assert not numpy.allclose(arrays["start"], arrays["end"])
    assert (tmp_path / "motion.png").read_bytes().startswith(b"\x89PNG")
    assert {"eval/reward", "rewards/reach/mean", "kl"} <= line.observed()[2].metrics.keys()
    resumed = build(settings, start, 5, tmp_path / "cache", tmp_path)
    checkpoint.load(resumed, tmp_path / "checkpoint-2")
    resumed.train(link=FakeLink())
    assert all(map(torch.equal, straight.policy.parameters(), resumed.policy.parameters()))
