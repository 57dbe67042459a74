"""A run with a trial against one without, bit for bit: where its control is kept, and where its change is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from oven_bench.gym.arms.auto_rate import RATE
from oven_bench.gym.fault import Trainee
from oven_bench.gym.trainee_factory import Make
from oven_bench.gym.trials.ordered_trials import Order, OrderingLink, Run, Seen, sign, usual
from oven_bench.gym.trials.planted_arms import arms
from oven_core.protocol.actions import ROLLBACK

BEGIN, AFTER = 21, 6
"""The tick at which the trial begins, and how many steps are compared behind it."""
PLANTED = 1000.0
"""What is added to an arm's reading of each example, so that it is kept, or is not, whatever it does."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One arm of one seed."""

    kind: str
    seed: int
    changes: tuple[str, ...]
    control_equal: bool
    change_equal: bool
    seen: Sequence[Seen]


def planted(favour: int) -> Callable[[Trainee], Callable[[], Sequence[float]]]:
    """Readings of a training of which every arm is read as better (+1) or worse (−1) than all before it."""

    def of(trainee: Trainee) -> Callable[[], Sequence[float]]:
        reads, shift = 0, PLANTED * favour * sign(trainee)

        def examples() -> Sequence[float]:
            nonlocal reads
            reads += 1
            return [one + shift * (reads - 1) for one in trainee.examples()]

        return examples

    return of


def compared(make: Make, kinds: Sequence[str], seeds: Sequence[int]) -> Iterator[Compared]:
    """Each of `arms`, on each task and seed. The state after the trial and some steps more is compared, and the log."""
    for kind in kinds:
        for seed in seeds:
            plain: dict[int, str] = {}
            for changes in arms(kind, BEGIN):
                order = usual(make(kind, seed), changes)
                lost, until, seen = _tried(make(kind, seed), order, -1)
                if until not in plain:
                    plain[until] = _played(make(kind, seed), OrderingLink([]), until)
                plain_end = plain[until]
                won, until, also = _tried(make(kind, seed), order, 1)
                direct = _played(make(kind, seed), OrderingLink([], {BEGIN: changes}), until)
                yield Compared(
                    kind,
                    seed,
                    tuple(changes),
                    control_equal=seen[0].ended.kept == 0 and lost == plain_end,
                    change_equal=also[0].ended.kept == 1 and won == direct,
                    seen=[*seen, *also],
                )


def three_changes(make: Make, kind: str, seed: int) -> list[Seen]:
    """One trial of three changes of which each is better than those before it: the most copies that one can need."""
    trainee = make(kind, seed)
    own = [change for change in arms(kind, BEGIN) if RATE not in change and ROLLBACK not in change]
    run = Run(trainee, OrderingLink([(BEGIN, usual(trainee, *own[:3]))]), planted(1))
    run.play(BEGIN)
    return run.close()


def _tried(trainee: Trainee, order: Order, favour: int) -> tuple[str, int, list[Seen]]:
    """The fingerprint at the tick that is returned, AFTER steps behind the trial's end."""
    run = Run(trainee, OrderingLink([(BEGIN, order)]), planted(favour))
    until = run.play(run.play(BEGIN) + AFTER)
    return run.fingerprint(), until, run.close()


def _played(trainee: Trainee, link: OrderingLink, until: int) -> str:
    run = Run(trainee, link)
    run.play(until)
    found = run.fingerprint()
    run.close()
    return found
