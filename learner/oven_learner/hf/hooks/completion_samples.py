"""Sampled completions of TRL's online trainers: every few steps some groups are handed over, to be shown.

TRL keeps prompts, completions, rewards and advantages of its newest generation itself, of all ranks and as plain
numbers (`_logs`), so nothing is asked of the device. On rank 0 alone. The training thread picks a group's rows out of
there; everything else is done where the sample is made. Written for TRL 1.16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from oven_learner.client.client import OvenClient
from oven_learner.completions.sample import MemberVerdict, Sample
from oven_learner.completions.sampling import Sampling
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
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
        self._schedule = sampling.schedule
        self._generate = trainer._generate_and_score_completions
        self._rows: dict[int, itemgetter[Any]] = {}
        self._fresh = self._leads = self._told = False
        trainer._generate_and_score_completions = self._generated

    def begin(self, ranks: Ranks) -> None:
        self._leads, self._fresh = ranks.leader, False
        self._schedule.restart()

    def end_step(self, step: StepEnd) -> None:
        """Hands over what this step's generation made, if its turn has come."""
        if not self._fresh or step.trained < self._schedule.next:
            return
        client = self._client()
        if client is None or not self._leads:
            return
        try:
            self._hand_over(client, step.trained)
        except Exception as error:  # of a TRL that keeps it otherwise; its text may quote a prompt
            if not self._told:
                self._told = True
                log.warning("completions are not shown: reading them from the trainer raised %s", type(error).__name__)

    def _generated(self, inputs: Any) -> Any:
        batch = self._generate(inputs)
        if self._trainer.model.training:
            self._fresh = True
        return batch

    def _hand_over(self, client: OvenClient, trained: int) -> None:
        """A step in ten costs this, so it is calls into C and no loop of Python: no column is copied, which would touch
        every object in it, but a group's rows are picked out of each."""
        trainer, committee, sampling = self._trainer, self._committee, self._sampling
        kept, size = trainer._logs, trainer.num_generations
        advantages = kept["advantages"]
        groups = len(advantages) // size
        self._fresh = False
        for turn in self._schedule.take(trained, groups):
            place = turn % groups
            rows = self._rows.get(place) or self._picker(place, size)
            if committee is None:
                names = trainer.reward_func_names
                columns = (*map(rows, map(kept["rewards"].__getitem__, names)),)
                said = partial(_functions, kept["prompt"][place * size], rows(kept["completion"]), columns, trainer)
            else:
                said = partial(_judged, committee.evidence, committee.last.rewards, place, size)
            sampling.number += 1
            where = (sampling.number, client.tick + 1, trainer.state.global_step, place, groups)
            client.show(partial(sampling.parcel, client.position, where, rows(advantages), said))

    def _picker(self, place: int, size: int) -> itemgetter[Any]:
        """What picks a group's rows out of a column."""
        made = self._rows[place] = itemgetter(*range(place * size, (place + 1) * size))
        return made


def _functions(prompt: Any, completions: Sequence[Any], columns: Sequence[Sequence[float]], trainer: Any) -> Sample:
    weights = trainer.reward_weights.tolist()
    named = zip(trainer.reward_func_names, weights, columns, strict=True)
    return Sample(prompt, completions, None, [MemberVerdict(*one) for one in named])


def _judged(evidence: Evidence, rewards: Sequence[float | None], place: int, size: int) -> Sample:
    group = evidence.groups[place]
    given = rewards[place * size : (place + 1) * size]
    return Sample(group.prompt, group.as_written, given, group_verdicts(evidence, place))
