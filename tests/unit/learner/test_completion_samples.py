"""Completions of TRL's trainers on their way out of the training: what is shown of them, and what is not touched."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
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

from oven_core.errors import ConfigError
from oven_core.protocol.completion_messages import SampledGroup
from oven_core.protocol.messages import LearnerMessage, Observation
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.completions.sample_message import encode_group
from oven_learner.completions.sampling import choose_sampling
from oven_learner.hf.attach import attach
from oven_learner.hf.hooks.completion_samples import CompletionSamples
from oven_learner.hf.hooks.step_hooks import StepEnd
from oven_learner.ranks import Ranks
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


TIMED = ("time/", "step_time", "tokens_per_s")


def groups(link: FakeLink) -> list[SampledGroup]:
    return [SampledGroup.model_validate_json(encode_group(fields) or b"") for fields in link.shown]


def test_a_committees_groups_are_shown_with_scores_and_advantages(tmp_path: Path) -> None:
    trainer, committee = grpo(tmp_path, Judge(lambda call, prompt: call == 3), max_steps=5)
    link = FakeLink()
    attach(trainer, link=link, committee=committee, completions={"every": 2})
    trainer.train()
    shown = groups(link)
    assert [(group.number, group.tick, group.step, group.group, group.groups) for group in shown] == [
        (1, 1, 1, 0, 2),
        (2, 3, 3, 1, 2),
        (3, 5, 5, 0, 2),
    ]
    first, unscored, _ = shown
    assert len(first.completions) == 4 and not first.redacted
    (judge,) = first.members
    assert (judge.member, judge.weight) == ("judge", 1.0)
    assert judge.scores == tuple(
        sum(letter in "abcdefghijklmn" for letter in completion.text) / 4 for completion in first.completions
    )
    assert (
        tuple(completion.reward for completion in first.completions) == judge.scores
    )  # one member's scores pass through
    advantages = [completion.advantage for completion in first.completions]
    assert None not in advantages and abs(sum(filter(None, advantages))) < 1e-4
    assert all(completion.reward is None and completion.advantage is None for completion in unscored.completions)
    assert unscored.members[0].abstained == "not_applicable" and unscored.members[0].scores == ()


def test_groups_of_plain_reward_functions_are_shown(tmp_path: Path) -> None:
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
    assert [(group.tick, group.group) for group in shown] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for group in shown:
        counted, unknown = group.members
        assert (counted.member, counted.weight, unknown.member) == ("length", 0.5, "vowels")
        assert unknown.scores == (None,) * 4  # NaN is missing, never a number
        for answer, score in zip(group.completions, counted.scores, strict=True):
            assert answer.reward == (None if score is None else 0.5 * score)
            assert (answer.advantage is None) == (score is None)


def untimed(message: LearnerMessage) -> LearnerMessage:
    """Without the metrics that measure time."""
    if not isinstance(message, Observation):
        return message
    untimed_metrics = {name: value for name, value in message.metrics.items() if not name.startswith(TIMED)}
    return message.model_copy(update={"metrics": untimed_metrics})


def test_training_and_log_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    """Of what the learner says to the log, two runs differ in what measures time, and in nothing else."""

    def run(sampling: dict[str, Any] | None) -> tuple[Remembering, torch.Tensor]:
        trainer, committee = grpo(tmp_path, Judge(), max_steps=3)
        link = Remembering()
        link.trainer = trainer
        attach(trainer, link=link, committee=committee, completions=sampling)
        trainer.train()
        return link, torch.random.get_rng_state()

    def log_bytes(link: FakeLink) -> list[bytes]:
        return [untimed(message).wire() for message in link.sent]

    off, drawn = run(None)
    for sampling in ({"every": 1, "groups": 2}, {"every": 0}):
        with_samples, then = run(sampling)
        assert bool(with_samples.shown) == bool(sampling["every"]) and not off.shown
        assert len(off.states) == 3 and all(same(*pair) for pair in zip(off.states, with_samples.states, strict=True))
        assert torch.equal(drawn, then)
        assert log_bytes(with_samples) == log_bytes(off)


def test_a_redaction_is_applied_and_one_that_raises_shows_nothing(tmp_path: Path) -> None:
    def blot(text: str) -> str:
        if "c" in text:
            raise ValueError(text)
        return "■" * len(text)

    trainer, committee = grpo(tmp_path, Judge(), max_steps=4)
    link = FakeLink()
    attach(trainer, link=link, committee=committee, completions={"every": 1}, redact=blot)
    trainer.train()
    shown = groups(link)
    assert len(shown) < 4 and all(group.redacted for group in shown)
    assert {letter for group in shown for text in (group.prompt, *group.completions) for letter in text.text} <= {"■"}
    with pytest.raises(ConfigError, match="every: Input should be greater than or equal to 0"):
        attach(grpo(tmp_path, Judge())[0], link=FakeLink(), completions={"every": -1})


def test_only_rank_0_shows_completions_and_none_of_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    def trainer() -> Any:
        rewards = {"one": deque([0.0, 1.0] * 4)}
        logs = {"prompt": ["p"] * 8, "completion": list("abcdefgh"), "rewards": rewards, "advantages": [-1.0, 1.0] * 4}
        return SimpleNamespace(
            _logs=logs,
            num_generations=4,
            reward_func_names=["one"],
            reward_weights=torch.ones(1),
            state=SimpleNamespace(global_step=1),
            model=SimpleNamespace(training=True),
            _generate_and_score_completions=lambda inputs: inputs,
        )

    def shown(*, leader: bool = True, training: bool = True, broken: bool = False) -> int:
        made, link = trainer(), FakeLink()
        client = OvenClient(link, Actuators())
        sampling = choose_sampling(None, {"every": 1}, None)
        assert sampling is not None
        hook = CompletionSamples(made, None, sampling, lambda: client)
        ranks = Ranks()
        monkeypatch.setattr(ranks, "index", 0 if leader else 1)
        hook.begin(ranks)
        made.model.training = training
        if broken:
            del made._logs["advantages"]
        assert made._generate_and_score_completions("inputs") == "inputs"
        for trained in (1, 2):  # the same generation is shown once
            hook.end_step(StepEnd(trained, False, frozenset(), {}))
        return len(link.shown)

    assert shown() == 1
    assert shown(leader=False) == shown(training=False) == shown(broken=True) == 0
