"""One case with the controller and without it, and what the two say of each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from oven_bench.foreign.controller_actions import RateCheck, rate_checks
from oven_bench.foreign.script_run import Run, Task, play
from oven_bench.foreign.verdicts import Played
from oven_core.mesh.actuator_values import show


@dataclass(frozen=True)
class Pair:
    """`alone` is None where the controller did nothing and the control was not asked for: it would be the same
    training."""

    controlled: Run
    alone: Run | None
    checks: list[RateCheck]

    @property
    def task(self) -> Task:
        return self.controlled.task

    @property
    def seconds(self) -> float:
        return self.controlled.seconds + (self.alone.seconds if self.alone else 0.0)

    @property
    def gain(self) -> float | None:
        """How much better the final held-out metric is with the controller; None where one of the two has none."""
        if self.controlled.final is None:
            return None
        if self.alone is None:
            return 0.0
        if self.alone.final is None:
            return None
        difference = self.controlled.final - self.alone.final
        return difference if self.controlled.better == "up" else -difference

    @property
    def same_bits(self) -> bool:
        """The same rates at each step, and the same final metric to the last bit."""
        other = self.alone
        if self.controlled.error:
            return False
        return other is None or (self.controlled.final == other.final and self.controlled.rates == other.rates)

    @property
    def played(self) -> Played:
        """What the verdicts go by."""
        task, run = self.task, self.controlled
        return Played(
            task.cell,
            task.start,
            task.case.steps,
            len(run.reading.changes),
            run.better or (self.alone.better if self.alone else ""),
            run.final,
            run.final if self.alone is None else self.alone.final,
            len(self.checks),
            sum(not check.matches for check in self.checks),
            run.reading.same_place,
        )

    def line(self) -> str:
        """The case and its result, on one line."""
        case, reading = self.task.case, self.controlled.reading
        sizes = f"width {case.width} std {case.init_std:g} seed {case.seed}"
        known = "" if self.controlled.error else f" {len(reading.changes)} changes"
        said = f"{self.task.cell} {self.task.start} lr {case.lr:.3g} {sizes}:{known or ' FAILED'}"
        if self.alone is None and self.controlled.error:
            return f"{said}; {_final(self.controlled)}"
        if self.alone is None:
            return f"{said}, so the control is the same; {_final(self.controlled)}"
        same = ", the same bits" if self.same_bits else ""
        gain = f" (better by {self.gain:+.4f})" if self.gain is not None and not self.same_bits else ""
        return f"{said}{same}; with {_final(self.controlled)}, without {_final(self.alone)}{gain}"

    def details(self) -> Iterator[str]:
        """One line per change, and what else is to be looked at."""
        reading = self.controlled.reading
        for one in reading.changes:
            before = f"{show(one.before)} → " if one.before is not None else ""
            yield f"{one.tick:>4} {one.actuator} {before}{show(one.after)} {one.agent}: {one.reason[:160]}"
        for check in self.checks:
            if not check.matches:
                yield (
                    f"MISMATCH: after the receipt at tick {check.tick} (scale {check.scale:g}) the rate used was "
                    f"{check.used:.4g}; schedule × scale is {check.expected:.4g}"
                )
        yield from (f"not applied: {text[:160]}" for text in reading.not_applied)
        if reading.same_place > 1:
            yield f"{reading.same_place} rollbacks to one step without a better held-out reading since"
        if reading.cannot_fire:
            yield f"cannot fire: {', '.join(reading.cannot_fire)}"


def play_pair(task: Task, both: bool = False) -> Pair:
    """Run a task with the controller and without it. With `both`, also where the controller did nothing.

    An evaluation that an agent asked for may draw random numbers, so it counts as something done."""
    controlled = play(task)
    if not (both or controlled.reading.changes or controlled.reading.asked or controlled.error):
        return Pair(controlled, None, [])
    alone = play(replace(task, controlled=False))
    return Pair(controlled, alone, rate_checks(controlled.reading, controlled.rates, alone.rates))


def _final(run: Run) -> str:
    return run.error if run.final is None else f"{run.final:.4f}"
