"""`optimizer.weight_decay`: acts, is read back, keeps ratios, and survives rollback and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, Toy, equal, trainer, weights
from transformers import Trainer, TrainerCallback

from oven_core.protocol.messages import RunStarted
from oven_learner.hf.attach import attach
from oven_learner.link.resume_state import ResumeState
from oven_learner.optim.weight_decay import WeightDecayKnob
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

DECAY = "optimizer.weight_decay"


def decays(job: Trainer) -> list[float]:
    optimizer: Any = getattr(job.optimizer, "optimizer", job.optimizer)
    return [group["weight_decay"] for group in optimizer.param_groups]


def announced(line: FakeLink) -> dict[str, Any]:
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    return {spec.name: spec for spec in run.actuators}


def groups(*decays: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [{"params": [torch.nn.Parameter(torch.ones(2))], "weight_decay": decay} for decay in decays], lr=0.1
    )


def test_a_weight_decay_takes_effect_at_the_next_step(tmp_path: Path) -> None:
    seen: list[list[float]] = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append(decays(job))

    job, line = trainer(tmp_path, weight_decay=0.1), FakeLink({4: (DECAY, 0.4)})
    job.add_callback(Watch())
    attach(job, link=line)
    job.train()
    spec = announced(line)[DECAY]
    assert (spec.value, spec.low, spec.high, spec.scale) == (0.1, 0.0, 1.0, "linear")
    assert [(r.status, r.before, r.after) for r in line.receipts()] == [("applied", 0.1, 0.4)]
    assert seen == [[0.1, 0.0]] * 4 + [[0.4, 0.0]] * 8, "biases have none, and get none"


def test_groups_keep_their_ratios_even_after_a_decay_of_0() -> None:
    optimizer = groups(0.0, 0.2, 0.02)
    knob = WeightDecayKnob([optimizer])
    assert knob.read() == knob.user_decay == 0.2
    knob.write(0.0)
    assert knob.read() == 0.0 and [group["weight_decay"] for group in optimizer.param_groups] == [0.0] * 3
    knob.write(0.6)
    assert [group["weight_decay"] for group in optimizer.param_groups] == pytest.approx([0.0, 0.6, 0.06])
    again = groups(0.0, 0.2, 0.02)
    again.load_state_dict(optimizer.state_dict())
    resumed = WeightDecayKnob([again])
    assert (resumed.read(), resumed.user_decay) == (0.6, 0.2)
    resumed.write(0.2)
    assert [group["weight_decay"] for group in again.param_groups] == pytest.approx([0.0, 0.2, 0.02])


def test_an_unchanged_decay_changes_nothing_and_a_resumed_run_keeps_the_decision(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"weight_decay": 0.1, "save_strategy": "steps", "save_steps": 6}
    plain = trainer(tmp_path / "plain", **settings)
    plain.train()
    attached = trainer(tmp_path / "attached", **settings)
    attach(attached, link=FakeLink())
    attached.train()
    assert equal(weights(plain), weights(attached))
    line = FakeLink({3: (DECAY, 0.8), 9: ("run.rollback", 2.0)})
    straight = trainer(tmp_path / "straight", **settings)
    attach(straight, link=line)
    straight.train()
    assert not equal(weights(plain), weights(straight))
    assert decays(straight) == [0.8, 0.0], "a rollback to before the change keeps it"
    resumed, line = trainer(tmp_path / "straight", **settings), FakeLink(past=ResumeState(1, 6, 9, {}))
    attach(resumed, link=line)
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-6"))
    spec = announced(line)[DECAY]
    assert (spec.value, spec.high) == (0.8, 1.0), "the bounds are the user's still"
    assert decays(resumed) == [0.8, 0.0]


def test_adamw_subtracts_the_rate_times_the_decay() -> None:
    optimizer = groups(0.1)
    WeightDecayKnob([optimizer]).write(0.5)
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = torch.zeros(2)
    optimizer.step()
    assert parameter.tolist() == pytest.approx([1 - 0.1 * 0.5] * 2)


def test_parameter_groups_of_the_user_keep_their_proportions(tmp_path: Path) -> None:
    model = Toy()
    made = torch.optim.SGD(
        [{"params": [p], "weight_decay": 0.01 * n} for n, p in enumerate(model.parameters())], lr=0.01
    )
    job, line = trainer(tmp_path, model=model, optimizers=(made, None), max_steps=4), FakeLink({2: (DECAY, 0.1)})
    attach(job, link=line)
    job.train()
    assert (announced(line)[DECAY].value, announced(line)[DECAY].high) == (0.01, 0.1)
    assert decays(job) == pytest.approx([0.0, 0.1, 0.2, 0.3])
