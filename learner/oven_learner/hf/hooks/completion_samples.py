"""Sends samples of the completions of TRL's online trainers to the monitor, every few steps.

TRL keeps the prompts, completions, rewards and advantages of its newest generation in a log, for all ranks and as
plain numbers. Therefore nothing is read from the device. Only rank 0 sends samples. The training thread picks the rows
of a group, and another thread does everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from oven_learner import trainer_internals
from oven_learner.client.oven_client import OvenClient
from oven_learner.completions.sample_message import MemberVerdict, Sample
from oven_learner.completions.sampling import SampleNumbers, Sampling
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks
from oven_learner.rewards.batch_rewards import Evidence

if TYPE_CHECKING:
    from oven_learner.rewards.committee import Committee

log = logging.getLogger("oven.learner")


class CompletionSamples(StepHook):
    """Sends samples of completions. It wraps the trainer's generation to notice new batches, so create it after other
    hooks that wrap the same method."""

    def __init__(
        self, trainer: Any, committee: Committee | None, sampling: Sampling, client: Callable[[], OvenClient | None]
    ) -> None:
        self._trainer, self._committee, self._sampling, self._client = trainer, committee, sampling, client
        self._schedule = sampling.schedule
        self._pickers: dict[int, itemgetter[Any]] = {}
        self._has_new_batch = self._is_leader = self._has_warned = False
        trainer_internals.wrap(trainer, trainer_internals.GENERATE_BATCH, self._mark_new_batches)

    def begin(self, ranks: Ranks) -> None:
        self._is_leader, self._has_new_batch = ranks.leader, False
        self._schedule.restart()

    def end_step(self, step: StepEnd) -> None:
        if not self._has_new_batch or step.trained_steps < self._schedule.due_step:
            return
        client = self._client()
        if client is None or not self._is_leader:
            return
        try:
            self._send_groups(client, step.trained_steps)
        except Exception as error:  # another version of TRL; the error's text may quote a prompt
            if not self._has_warned:
                self._has_warned = True
                log.warning("completions are not shown: reading them from the trainer raised %s", type(error).__name__)

    def _mark_new_batches(self, generate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def generate_and_mark(inputs: Any) -> Any:
            batch = generate(inputs)
            if self._trainer.model.training:
                self._has_new_batch = True
            return batch

        return generate_and_mark

    def _send_groups(self, client: OvenClient, trained_steps: int) -> None:
        """Queue samples of the groups that are due. An `itemgetter` picks a group's rows from each column, because
        copying a column would touch every object in it."""
        trainer, committee, sampling = self._trainer, self._committee, self._sampling
        logs, group_size = trainer_internals.completion_log(trainer), trainer.num_generations
        advantages, step = logs["advantages"], trainer.state.global_step
        group_count = len(advantages) // group_size
        self._has_new_batch = False
        for group_number in self._schedule.take(trained_steps, group_count):
            group = group_number % group_count  # index of the group in this batch
            pick_rows = self._pickers.get(group) or self._create_picker(group, group_size)
            if committee is None:
                columns = [pick_rows(logs["rewards"][name]) for name in trainer.reward_func_names]
                prompt, completions = logs["prompt"][group * group_size], pick_rows(logs["completion"])
                build_sample = partial(_build_function_sample, prompt, completions, columns, trainer)
            else:
                rewards = committee.last_outcome.rewards
                build_sample = partial(_build_committee_sample, committee.evidence, rewards, group, group_size)
            sampling.sample_count += 1
            numbers = SampleNumbers(sampling.sample_count, client.tick + 1, step, group, group_count)
            client.show(partial(sampling.convert, client.position, numbers, pick_rows(advantages), build_sample))

    def _create_picker(self, group: int, size: int) -> itemgetter[Any]:
        picker = self._pickers[group] = itemgetter(*range(group * size, (group + 1) * size))
        return picker


def _build_function_sample(
    prompt: Any, completions: Sequence[Any], columns: Sequence[Sequence[float]], trainer: Any
) -> Sample:
    weights = trainer.reward_weights.tolist()
    members = [MemberVerdict(*fields) for fields in zip(trainer.reward_func_names, weights, columns, strict=True)]
    return Sample(prompt, completions, None, members)


def _build_committee_sample(evidence: Evidence, rewards: Sequence[float | None], index: int, size: int) -> Sample:
    group = evidence.groups[index]
    group_rewards = rewards[index * size : (index + 1) * size]
    return Sample(group.prompt, group.original_completions, group_rewards, evidence.group_verdicts(index))
