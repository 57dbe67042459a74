"""`data/repeated`: the share of a step's rows that the run has read before.

Only for data whose order is ours, a `Mixture`, and where training is on the rows themselves: a prompt that comes again
gets other answers, and teaches again.
"""

from __future__ import annotations

from transformers import Trainer

from oven_controller.protocol.messages import MetricSpec
from oven_learner.hf.knobs.mixture import Mixture, MixtureSampler

REPEATED = MetricSpec(name="data/repeated", unit="share of the step's rows that were read before")


class Repeated:
    """Counts a step's rows when it has trained on them: the loader draws ahead, and a skip throws away what it drew. A
    rollback in place leaves the data where they are, and rows that were read; one by restart takes back both."""

    announced = (REPEATED,)

    def __init__(self, mixture: Mixture, sampler: MixtureSampler, chunk: int) -> None:
        self._mixture, self._sampler, self._chunk = mixture, sampler, chunk

    @classmethod
    def of(cls, trainer: Trainer, mixture: Mixture | None) -> Repeated | None:
        """Once the loader is made, and the mixture is where it was. A step of such a trainer is a chunk."""
        sampler = mixture.sampler if mixture is not None else None
        if mixture is None or sampler is None or sampler.answered:
            return None
        return cls(mixture, sampler, 0 if trainer.args.ignore_data_skip else trainer.state.global_step)

    def take(self) -> dict[str, float]:
        """Once per step, at its end."""
        rows = self._mixture.rows(self._chunk, self._sampler.prompts)
        self._chunk += 1
        return {REPEATED.name: self._mixture.read.repeated(rows)}
