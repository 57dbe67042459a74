"""Completions of TRL's trainers on their way out of the training: what is shown of them, and what is not touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tests.support.attached import THIRD_PARTY, llama
from tests.unit.learner.test_attach_trl import COMMON, tokenizer
from tests.unit.learner.test_rewards_skipping import Judge, Remembering, grpo, same
from transformers import set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_controller.errors import ConfigError
from oven_controller.protocol.completion_messages import SampledGroup
from oven_learner.completions.message import wire_of
from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def groups(link: FakeLink) -> list[SampledGroup]:
    return [SampledGroup.model_validate_json(wire_of(parcel) or b"") for parcel in link.shown]


def test_a_committees_groups_with_scores_and_advantages(tmp_path: Path) -> None:
    trainer, committee = grpo(tmp_path, Judge(lambda call, prompt: call == 3), max_steps=5)
    link = FakeLink()
    attach(trainer, link=link, committee=committee, completions={"every": 2})
    trainer.train()
    shown = groups(link)
    assert [(one.number, one.tick, one.step, one.group, one.groups) for one in shown] == [
        (1, 1, 1, 0, 2),
        (2, 3, 3, 1, 2),
        (3, 5, 5, 0, 2),
    ]
    first, unscored, _ = shown
    assert len(first.completions) == 4 and not first.redacted
    (judge,) = first.members
    assert (judge.member, judge.weight) == ("judge", 1.0)
    assert judge.scores == tuple(
        sum(letter in "abcdefghijklmn" for letter in one.text) / 4 for one in first.completions
    )
    assert tuple(one.reward for one in first.completions) == judge.scores  # one member's scores pass through
    advantages = [one.advantage for one in first.completions]
    assert None not in advantages and abs(sum(filter(None, advantages))) < 1e-4
    assert all(one.reward is None and one.advantage is None for one in unscored.completions)
    assert unscored.members[0].abstained == "not_applicable" and unscored.members[0].scores == ()


def test_plain_reward_functions(tmp_path: Path) -> None:
    def length(completions: list[str], **_: Any) -> list[float | None]:
        return [float(len(text)) if text else None for text in completions]

    def vowels(completions: list[str], **_: Any) -> list[float | None]:
        return [float("nan") for _ in completions]

    set_seed(3)
    trainer = GRPOTrainer(
        model=llama(),
        reward_funcs=[length, vowels],
        args=GRPOConfig(
            output_dir=str(tmp_path),
            **(
                COMMON
                | {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 4, "max_steps": 2}
                | {"reward_weights": [0.5, 2.0]}
            ),
        ),
        train_dataset=Dataset.from_list([{"prompt": letter} for letter in "abcdefgh"]),
        processing_class=tokenizer(),
    )
    link = FakeLink()
    attach(trainer, link=link, completions={"every": 1, "groups": 2})
    trainer.train()
    shown = groups(link)
    assert [(one.tick, one.group) for one in shown] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for one in shown:
        counted, unknown = one.members
        assert (counted.member, counted.weight, unknown.member) == ("length", 0.5, "vowels")
        assert unknown.scores == (None,) * 4  # NaN is missing, never a number
        for answer, score in zip(one.completions, counted.scores, strict=True):
            assert answer.reward == (None if score is None else 0.5 * score)
            assert (answer.advantage is None) == (score is None)


def test_the_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    states = []
    for given in (None, {"every": 1, "groups": 2}, {"every": 0}):
        trainer, committee = grpo(tmp_path, Judge(), max_steps=3)
        link = Remembering()
        link.trainer = trainer
        attach(trainer, link=link, committee=committee, completions=given)
        trainer.train()
        states.append(
            (
                link.states,
                torch.random.get_rng_state(),
                bool(link.shown),
                [message.model_dump_json() for message in link.sent],
            )
        )
    off, on, never = states
    assert (off[2], on[2], never[2]) == (False, True, False)
    assert all(same(*pair) for pair in zip(off[0], on[0], strict=True)) and torch.equal(off[1], on[1])
    assert all(same(*pair) for pair in zip(off[0], never[0], strict=True))


def test_what_a_redaction_does_and_where_it_raises(tmp_path: Path) -> None:
    def blot(text: str) -> str:
        if "c" in text:
            raise ValueError(text)
        return "■" * len(text)

    trainer, committee = grpo(tmp_path, Judge(), max_steps=4)
    link = FakeLink()
    attach(trainer, link=link, committee=committee, completions={"every": 1}, redact=blot)
    trainer.train()
    shown = groups(link)
    assert len(shown) < 4 and all(one.redacted for one in shown)
    assert {letter for one in shown for text in (one.prompt, *one.completions) for letter in text.text} <= {"■"}
    with pytest.raises(ConfigError, match="every: Input should be greater than or equal to 0"):
        attach(grpo(tmp_path, Judge())[0], link=FakeLink(), completions={"every": -1})
