"""`data/repeated`: the share of a step's rows that the run has read before.

It is measured only for a `Mixture`, whose order is known, and if training is on the rows themselves. A repeated prompt
gets new answers, from which training learns again.
"""

from __future__ import annotations

from transformers import Trainer

from oven_core.protocol.messages import MetricSpec
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.ranks import Ranks

REPEATED = MetricSpec(name="data/repeated", unit="share of the step's rows that were read before")


class Repeated(StepHook):
    """Counts the rows of a step after training on them, because the loader draws ahead, and a skip discards those rows.

    A rollback in place does not move the data, and read rows stay read. A rollback by restart restores both.
    """

    def __init__(self, trainer: Trainer, mixture: Mixture) -> None:
        self._trainer, self._mixture = trainer, mixture
        self._prompts = 0
        """Rows in a chunk; 0 if they are not counted."""
        self._chunk = 0

    def begin(self, ranks: Ranks) -> None:
        """A step of such a trainer is one chunk."""
        sampler, trainer = self._mixture.sampler, self._trainer
        self._prompts = sampler.prompts if sampler is not None and not sampler.answered else 0
        self._chunk = 0 if trainer.args.ignore_data_skip else trainer.state.global_step

    def announced(self) -> tuple[MetricSpec, ...]:
        return (REPEATED,) if self._prompts else ()

    def end_step(self, step: StepEnd) -> None:
        if self._prompts:
            rows = self._mixture.rows(self._chunk, self._prompts)
            self._chunk += 1
            step.metrics[REPEATED.name] = self._mixture.read.repeated(rows)
