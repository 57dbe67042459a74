"""`data.skip`: pass over so many batches, from the one on that training would see next. What a bad stretch of data
calls for, beside a rollback (PaLM; Chowdhery et al. 2022, arXiv 2204.02311, section 5.1: 200 to 500 batches).

Only for data whose order is ours, a `Mixture`: there a batch is a function of its position, so that a skip is a number
that a checkpoint keeps, and a run that resumes draws the same rows. A rollback in place leaves the data where they are,
and a skip with them; one by restart takes both back to the checkpoint.
"""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators
from oven_learner.hf.knobs.mixture import Mixture

NAME = "data.skip"
MOST = 10_000
"""Batches in one skip: more is a mistake."""


class Skip:
    """One trainer's. What the loader has drawn ahead of training is thrown away when it is passed over."""

    def __init__(self, trainer: Any, mixture: Mixture) -> None:
        self._mixture = mixture
        self._trained_on = 0
        self._to_drop = 0
        fetch = trainer.get_batch_samples

        def fetched(iterator: Any, batches: int, *rest: Any) -> Any:
            """The batches of one optimizer step."""
            while self._to_drop:
                self._to_drop -= 1
                fetch(iterator, batches, *rest)
            self._trained_on += 1
            return fetch(iterator, batches, *rest)

        fetched.oven_skip = self  # type: ignore[attr-defined]
        trainer.get_batch_samples = fetched

    def begin(self, step: int) -> None:
        """Training begins with this chunk."""
        self._trained_on, self._to_drop = step, 0

    def __call__(self, count: float | None) -> tuple[float, float]:
        """(position of the batch that would have come next, and of the one that does). Raises ValueError for what is
        not a number of batches.

        Where a chunk serves several steps (completions that are reused), and at an epoch's last step, the skip begins
        with the chunk after the one that is drawn.
        """
        if count is None or not 1 <= count <= MOST or count != int(count):
            raise ValueError(f"{count!r} is not a number of batches to pass over; give a whole one from 1 to {MOST:,}")
        mixture, sampler = self._mixture, self._mixture.sampler
        chunk = drawn = mixture.next_chunk
        if sampler is not None and sampler.repeats == 1 and drawn < sampler.ends:
            chunk = min(drawn, self._trained_on)
        before = mixture.position(chunk)
        mixture.skip(int(count), chunk)
        self._to_drop += drawn - chunk
        return float(before), float(mixture.position(chunk))


def announce(trainer: Any, actuators: Actuators, mixture: Mixture) -> None:
    if NAME in actuators:
        return
    skip = getattr(trainer.get_batch_samples, "oven_skip", None) or Skip(trainer, mixture)
    skip.begin(0 if trainer.args.ignore_data_skip else trainer.state.global_step)
    actuators.action(NAME, skip, unit="batches")
