"""`committee.ahead: 1`: what is made while the judges are asked is trained on a step later, and is never mixed up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, llama
from tests.support.unswappable import Unswappable
from tests.unit.learner.test_attach_trl import COMMON, tokenizer
from transformers import TrainerCallback, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_core.errors import ConfigError
from oven_core.protocol.committee_requests import ScoreRequest
from oven_learner.hf.attach import attach
from oven_learner.hf.callback import Attachment
from oven_learner.rewards import Committee
from oven_learner.rewards.member_models import RequestedModel
from oven_learner.rewards.verdicts import Verdict
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

PROMPTS = "abcdefgh"


def early(text: str) -> float:
    return min(1.0, sum(letter < "n" for letter in text) / 4)


class Judges(Unswappable):
    """Remote members that like early letters. What they were asked is kept, with the trainer's step at that moment."""

    deadline_s = 5.0

    def __init__(self, members: tuple[str, ...] = ("critic", "second")) -> None:
        self.members = members
        self.requests: list[tuple[int, tuple[str, ...]]] = []
        self.trainer: Any = None
        self.held: Callable[[], object] = lambda: None
        """Called before they answer."""

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, RequestedModel]) -> dict[str, list[Verdict]]:
        self.requests.append((self.trainer.state.global_step, tuple(request.prompt for request in requests)))
        self.held()
        verdicts: list[Verdict] = [
            tuple(early(completion.text) for completion in request.completions) for request in requests
        ]
        return {member: [*verdicts] for member in members}

    def close(self) -> None:
        """Nothing is open."""


def made(folder: Path, judges: Judges, *, ahead: int, **settings: Any) -> tuple[Any, Committee]:
    set_seed(3)
    committee = Committee({}, remote=judges, ahead=ahead)
    model: Any = llama()
    if settings.get("beta"):
        model.save_pretrained(folder / "policy")
        model = str(folder / "policy")
    defaults: dict[str, Any] = {
        "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 4, "max_steps": 6,
        "learning_rate": 1e-3,
    }  # fmt: skip
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[committee],
        args=GRPOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=Dataset.from_list([{"prompt": letter} for letter in PROMPTS]),
        eval_dataset=Dataset.from_list([{"prompt": letter} for letter in PROMPTS[:4]]),
        processing_class=tokenizer(),
    )
    judges.trainer = trainer
    return trainer, committee


class Seen(TrainerCallback):
    """Which prompts each step trained on, and the greatest distance of its importance ratio from 1."""

    def __init__(self, trainer: Any) -> None:
        self.prompts: list[str] = []
        self.old: list[bool] = []
        compute = trainer._compute_loss

        def watched(model: Any, inputs: Any) -> torch.Tensor:
            if model.training:
                words = trainer.processing_class.batch_decode(inputs["prompt_ids"], skip_special_tokens=True)
                self.prompts.append("".join(sorted(set(words))))
                self.old.append("old_per_token_logps" in inputs)
            loss: torch.Tensor = compute(model, inputs)
            return loss

        trainer._compute_loss = watched


def train(trainer: Any, committee: Committee, link: FakeLink | None = None) -> tuple[Attachment, FakeLink, Seen]:
    line = link or FakeLink()
    seen = Seen(trainer)
    attached = attach(trainer, committee=committee, link=line)
    trainer.train()
    assert not [thread for thread in threading.enumerate() if thread.name == "oven-generation" and _alive(thread)]
    return attached, line, seen


def _alive(thread: threading.Thread) -> bool:
    thread.join(60)
    return thread.is_alive()


def test_with_ahead_0_a_judge_trains_the_same_bits_as_a_function(tmp_path: Path) -> None:
    trainer, committee = made(tmp_path, Judges(("critic",)), ahead=0)
    plain, _ = made(tmp_path, Judges(), ahead=0)
    plain.reward_funcs = [lambda completions, **_: [early(text) for text in completions]]
    attached, _, seen = train(trainer, committee)
    assert "grpo.epsilon" not in attached.actuators and not any(seen.old)
    set_seed(3)
    plain.train()
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, trainer.model.state_dict()[name]), name


@pytest.mark.parametrize("shape", [{}, {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}])
def test_each_row_is_trained_once_in_the_same_order_one_step_after_its_policy(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    """Over an epoch's end, at which nothing is known to come next."""
    plain, judges = Judges(), Judges()
    _, line, before = train(*made(tmp_path / "0", plain, ahead=0, **shape))
    _, ahead, after = train(*made(tmp_path / "1", judges, ahead=1, **shape))
    assert after.prompts == before.prompts
    assert [step for step, _ in plain.requests] == [0, 1, 2, 3, 4, 5]
    assert [step for step, _ in judges.requests] == [0, 0, 1, 2, 4, 4], "epochs have 4 steps"
    assert [prompts for _, prompts in judges.requests] == [prompts for _, prompts in plain.requests]
    assert ahead.series("committee/steps_ahead") == [0, 1, 1, 1, 0, 1]
    assert after.old[:: len(after.old) // 6] == [False, True, True, True, False, True]
    assert not any("committee/steps_ahead" in observation.metrics for observation in line.observed())
    for observation, expected in zip(ahead.observed(), line.observed(), strict=True):
        ours, others = (
            {name for name in seen.metrics if not name.startswith("time/")} for seen in (observation, expected)
        )
        assert ours - {"committee/steps_ahead"} == others, "each step has its own metrics"


def test_the_judges_answer_while_the_next_step_is_made(tmp_path: Path) -> None:
    """They answer a batch only when the trainer has asked for another one, or there is none to come."""
    judges = Judges()
    trainer, committee = made(tmp_path, judges, ahead=1, max_steps=4)
    more = threading.Condition()

    def held() -> None:
        with more:
            number = len(judges.requests)
            more.notify_all()
            assert more.wait_for(lambda: len(judges.requests) > number or number == 4, 60)

    judges.held = held
    _, line, _ = train(trainer, committee)
    assert line.series("committee/skipped_groups") == [0.0] * 4


def test_a_rollback_and_an_evaluation_do_not_corrupt_batches_in_flight(tmp_path: Path) -> None:
    """After the rollback the next step's rows are generated anew; an evaluation has its own rewards and no one else's.
    A decision that pulls to a reference for the first time has what has no reference's log-probabilities made anew."""
    judges = Judges()
    trainer, committee = made(
        tmp_path,
        judges,
        ahead=1,
        max_steps=8,
        beta=0.1,
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=8,
    )
    line = FakeLink({3: ("run.rollback", 2.0)})
    attached, line, seen = train(trainer, committee, line)
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    assert "grpo.epsilon" in attached.actuators, "the ratio is not 1 any more"
    assert [len(prompts) for _, prompts in judges.requests].count(2) >= 8
    ahead = line.series("committee/steps_ahead")
    assert ahead[3] == 0, "the step after the rollback"
    assert all(len(pair) == 2 for pair in seen.prompts)
    twice = [pair for pair in zip(seen.prompts, seen.prompts[1:], strict=False) if pair[0] == pair[1]]
    assert not twice


def test_unsupported_trainers_are_refused_generation_ahead(tmp_path: Path) -> None:
    trainer, committee = made(tmp_path, Judges(), ahead=1, num_iterations=2)
    with pytest.raises(ConfigError, match=r"one generation per optimizer step.*num_iterations 2"):
        attach(trainer, committee=committee, link=FakeLink())
    trainer, committee = made(tmp_path, Judges(), ahead=1)
    trainer.accelerator.state.num_processes = 2
    try:
        with pytest.raises(ConfigError, match="supports one process, but this training run has 2"):
            attach(trainer, committee=committee, link=FakeLink())
    finally:
        trainer.accelerator.state.num_processes = 1
