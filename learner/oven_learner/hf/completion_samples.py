"""Sampled completions of TRL's online trainers: every few steps some groups are handed over, to be shown.

TRL keeps prompts, completions, rewards and advantages of its newest generation itself, of all ranks and as plain
numbers (`_logs`), so nothing is asked of the device. On rank 0 alone. Written for TRL 1.16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from oven_learner.client.client import OvenClient
from oven_learner.completions.sample import MemberVerdict
from oven_learner.completions.sampling import Sampling
from oven_learner.hf.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks
from oven_learner.rewards.committee import Committee
from oven_learner.rewards.group import Evidence
from oven_learner.rewards.group_verdicts import group_verdicts

log = logging.getLogger("oven.learner")

SAMPLED = ("GRPOTrainer", "RLOOTrainer")
"""Trainers that keep their newest generation with its rewards and advantages."""


def shows_completions(trainer: Any) -> bool:
    """Whether its completions can be shown."""
    return hasattr(trainer, "_logs") and any(cls.__name__ in SAMPLED for cls in type(trainer).__mro__)


class CompletionSamples(StepHook):
    """Wraps the trainer's own call; made after whatever else wraps it."""

    def __init__(
        self, trainer: Any, committee: Committee | None, sampling: Sampling, client: Callable[[], OvenClient | None]
    ) -> None:
        self._trainer, self._committee, self._sampling, self._client = trainer, committee, sampling, client
        self._generate = trainer._generate_and_score_completions
        self._evidence: Evidence | None = None
        self._rewards: Sequence[float | None] = ()
        self._fresh = self._leads = self._told = False
        trainer._generate_and_score_completions = self._generated

    def begin(self, ranks: Ranks) -> None:
        self._leads, self._fresh = ranks.leader, False

    def end_step(self, step: StepEnd) -> None:
        """Hands over what this step's generation made, if its turn has come."""
        client, fresh = self._client(), self._fresh
        self._fresh = False
        if not fresh or client is None or client.plays_branch or not self._sampling.schedule.due(client.tick + 1):
            return
        try:
            self._hand_over(client)
        except Exception as error:  # of a TRL that keeps it otherwise; its text may quote a prompt
            if not self._told:
                self._told = True
                log.warning("completions are not shown: reading them from the trainer raised %s", type(error).__name__)

    def _generated(self, inputs: Any) -> Any:
        batch = self._generate(inputs)
        if self._leads and self._trainer.model.training:
            self._fresh = True
            if self._committee is not None:
                self._evidence, self._rewards = self._committee.evidence, self._committee.last.rewards
        return batch

    def _hand_over(self, client: OvenClient) -> None:
        trainer, evidence, tick = self._trainer, self._evidence, client.tick + 1
        kept, size = trainer._logs, trainer.num_generations
        groups = len(kept["advantages"]) // size
        for place in self._sampling.schedule.take(tick, groups):
            rows = place * size, (place + 1) * size
            rewards: Sequence[float | None] | None = None
            members: Callable[[], Sequence[MemberVerdict]]
            completions: Sequence[Any]
            if evidence is not None:
                prompt, completions = evidence.groups[place].prompt, evidence.groups[place].completions
                rewards, members = self._rewards[rows[0] : rows[1]], partial(group_verdicts, evidence, place)
            else:
                prompt, completions = kept["prompt"][rows[0]], _rows(kept["completion"], rows)
                columns = [_rows(kept["rewards"][name], rows) for name in trainer.reward_func_names]
                members = partial(_functions, trainer.reward_func_names, columns, trainer.reward_weights.tolist())
            client.show(
                self._sampling.parcel(
                    incarnation=client.position()["incarnation"],
                    tick=tick,
                    step=trainer.state.global_step,
                    group=place,
                    groups=groups,
                    prompt=prompt,
                    completions=completions,
                    rewards=rewards,
                    advantages=_rows(kept["advantages"], rows),
                    members=members,
                )
            )


def _rows(column: Any, rows: tuple[int, int]) -> list[Any]:
    """A copy: TRL's own changes with the next generation."""
    return list(islice(column, *rows))


def _functions(names: Sequence[str], columns: Sequence[list[float]], weights: Sequence[float]) -> list[MemberVerdict]:
    return [MemberVerdict(*one) for one in zip(names, weights, columns, strict=True)]
