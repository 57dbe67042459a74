"""Clear harm, charged to all who carried changes since the target was last well, confounded or not.

An outcome says nothing where the next change cuts its window short, or where nothing was measured before. Anyone who
turned knobs fast enough could so do any harm without being scored. So beside the outcomes a target's level when it was
well stands against what is measured since, whatever happened in between. Clear is CLEAR standard errors, with every
new measurement worse than every old one; or a target that stopped being finite.

Who vetoed carried leaving things as they were, and is charged alike. Changes that are made while the target is falling
already are remedies, and charged for nothing that was on its way. A rollback carries no one: after one, the level to
hold against is that of the restored step the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from oven_core.mesh.effect import effect
from oven_core.mesh.measurements import Measurements, sound
from oven_core.mesh.reputation import Stance

CLEAR: Final = 4.0
"""Standard errors: it is asked at every measurement, so two would be reached by chance."""
FALLING: Final = 2.0
"""Standard errors below what was measured before, from which on a target counts as falling already."""
LEAST: Final = 0.02
"""Share of the level that a fall has to reach: what was constant has no noise to hold it against."""
PATIENCE: Final = 5
"""Horizons for which a level is looked back on."""


@dataclass(frozen=True, slots=True)
class Charge:
    """Clear harm to one target: who carried the changes since tick `since`, and what was measured on either side."""

    target: str
    sign: int
    since: int
    agents: Mapping[str, Stance]
    before: tuple[float, ...]
    after: tuple[float, ...]
    broken: bool
    """The target is not finite any more."""


@dataclass(slots=True)
class _Watched:
    """A target, its level when it was well, and who carried changes since."""

    sign: int
    horizon: int
    since: int
    """Tick of the newest change."""
    before: tuple[float, ...]
    agents: dict[str, Stance] = field(default_factory=dict)


@dataclass(slots=True)
class Harm:
    """One training's. The outcomes feed it changes, vetoes and rollbacks, and ask at every observation."""

    samples: int
    _watched: dict[str, _Watched] = field(default_factory=dict)

    def carried(
        self, measured: Measurements, target: str, sign: int, horizon: int, agents: Mapping[str, Stance], tick: int
    ) -> None:
        """`agents` changed something at `tick` that `target` judges (`sign` 1 where up is better), or kept a change
        from being made by their `against`."""
        if not agents:
            return
        held, veto = self._watched.get(target), "against" in agents.values()
        if held is not None and (veto or self._gap(held, self._after(measured, target, held)) < FALLING):
            held.agents |= agents
            held.since, held.horizon = tick, max(held.horizon, horizon)
            return
        before = _sound(measured.between(target, tick - horizon, tick))
        if len(before) < self.samples:
            before = _sound(measured.between(target, tick - PATIENCE * horizon, tick))[-self.samples :]
        if held is None and (veto or not self._falls(before, sign)):
            self._watched[target] = _Watched(sign, horizon, tick, before, dict(agents))

    def went_back(self, measured: Measurements, step: float, tick: int) -> None:
        """A rollback to `step` at `tick`: what was measured there the first time is the level from now on."""
        for target, held in list(self._watched.items()):
            held.before = _sound(measured.of_steps(target, step - held.horizon, step, since=-1, upto=tick))
            held.since = tick
            if len(held.before) < self.samples:
                del self._watched[target]

    def found(self, measured: Measurements, tick: int) -> list[Charge]:
        """The clear harm that shows now. A target that is harmed, or well for two horizons, is watched no more."""
        charged: list[Charge] = []
        for target, held in list(self._watched.items()):
            after, over = measured.between(target, held.since, tick), tick - held.since >= 2 * held.horizon
            if len(held.before) < self.samples:  # nothing was measured before the change: the first since stands for it
                held.before = _sound(after)[: self.samples]
                held.since = tick if len(held.before) >= self.samples else held.since
                continue
            newest, broken = _sound(after)[-self.samples :], bool(after) and not sound(after[-1])
            if broken or self._gap(held, newest) >= CLEAR:
                charged.append(Charge(target, held.sign, held.since, held.agents, held.before, newest, broken))
                over = True
            if over:
                del self._watched[target]
        return charged

    def _after(self, measured: Measurements, target: str, held: _Watched) -> tuple[float, ...]:
        return _sound(measured.between(target, held.since, 2**53))[-self.samples :]

    def _gap(self, held: _Watched, after: tuple[float, ...]) -> float:
        """How far it fell, in standard errors; 0 where it is no worse or too little was measured."""
        if len(after) < self.samples or len(held.before) < self.samples:
            return 0.0
        worst, best = min(held.sign * value for value in held.before), max(held.sign * value for value in after)
        seen = effect(held.before, after, held.sign, held.before)
        if best >= worst or -seen.gain < LEAST * abs(seen.before):
            return 0.0
        return -seen.gain / seen.noise if seen.noise > 0 else 2 * CLEAR

    def _falls(self, before: tuple[float, ...], sign: int) -> bool:
        """Whether the newest of them are worse than the older ones."""
        older, newest = before[: -self.samples], before[-self.samples :]
        if len(older) < self.samples:
            return False
        seen = effect(older, newest, sign, older)
        return seen.gain < 0 and -seen.gain >= FALLING * seen.noise


def _sound(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(filter(sound, values))
