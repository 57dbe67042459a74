"""Your own loop as something that can play the same steps again: it reads its batches through `batches`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from oven_core.protocol.messages import MetricSpec
from oven_learner.optim import snapshot
from oven_learner.trials import random_state
from oven_learner.trials.tape import Tape
from oven_learner.trials.training_state import TrainingState

_END = "the end of the data"


@dataclass(frozen=True, slots=True)
class LoopState:
    """One copy."""

    read: int
    epoch: int
    left: int | None
    training: dict[str, Any]
    random: random_state.State


class LoopBranch:
    """One loop's (oven_learner.trials.branchable.Branchable)."""

    lagging: frozenset[str] = frozenset()

    def __init__(
        self,
        training: TrainingState,
        reading: MetricSpec | None,
        measure: Callable[[], Sequence[float]],
        moved: Callable[[], object] = lambda: None,
        *,
        begun: Callable[[], bool] = lambda: True,
        by_clock: bool = True,
    ) -> None:
        """`reading` is None where nothing is measured by example; `measure` returns the value of each, and changes
        nothing. `moved` is called when something else than a step has changed weights and rates. `begun`: whether a
        step was made. `by_clock`: whether a slow evaluation rules out further trials."""
        self.by_clock, self.by_steps = by_clock, not training.scheduled
        self._training, self._reading, self._measure, self._moved = training, reading, measure, moved
        self._begun = begun
        self._tape = Tape()
        self._epoch = 0
        self._left: int | None = None
        self._ended_within = False
        self._is_read = False
        self.playing = False
        """Whether a branch plays. What the loop itself does beside training, it does in a branch, too."""

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The loader's, and the same again where a trial plays steps again. Several per step may be read."""
        own = self._epoch
        self._left = len(loader) if isinstance(loader, Sized) else None
        opened: list[Iterator[Any]] = []

        def pull() -> Any:
            if not opened:
                opened.append(iter(loader))
            return next(opened[0], _END)

        while True:
            self._is_read = True
            batch = self._tape.read(pull)
            if isinstance(batch, str) and batch == _END:
                self._ended_within |= self._tape.recording
                self._epoch += 1
                if self._epoch > own:
                    return
                continue  # an earlier epoch's end, come by again
            if self._left is not None:
                self._left -= 1
            yield batch

    @property
    def reading(self) -> MetricSpec:
        assert self._reading is not None
        return self._reading

    @property
    def room(self) -> int | None:
        """Batches that are left of this epoch: what the loop does between epochs is not played again. None where the
        loader has no length."""
        return self._left

    @property
    def recorded(self) -> int:
        """Batches that are kept to be given again."""
        return len(self._tape)

    def problem(self) -> str:
        """Before the first step it is taken for granted that the loop will read through `batches`."""
        if sharded := snapshot.sharded(self._training.model):
            return f"{sharded}, and its parts cannot be copied rank by rank: train it whole"
        if self._reading is None:
            return (
                "nothing is held out example by example: have evaluate= return the value of each example in a list, "
                "under a name whose better direction is known"
            )
        if self._begun() and not self._is_read:
            return "the batches cannot be given again: iterate over client.batches(loader) in the place of the loader"
        if self._ended_within:
            return (
                "the data ended within the trial, and what the loop does between epochs is not played again: let one "
                "loader go over the data several times"
            )
        return self._training.does_not_fit()

    def take(self) -> LoopState:
        state = LoopState(self._tape.position, self._epoch, self._left, self._training.take(), random_state.take())
        self._tape.record()
        return state

    def restore(self, state: LoopState) -> None:
        self._tape.go_to(state.read)
        self._epoch, self._left = state.epoch, state.left
        self._training.restore(state.training)
        random_state.restore(state.random)
        self._moved()

    def examples(self) -> Sequence[float]:
        with random_state.undisturbed(self._training.model):
            return self._measure()

    def finish(self) -> None:
        self._tape.finish()
        self._ended_within = False
