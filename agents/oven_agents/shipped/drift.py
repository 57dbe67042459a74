"""Detects policy drift, away from a frontier model's answers or at a growing rate from the reference model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from oven_agents.sdk.agent import Agent, unmeasured
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import needs_second
from oven_agents.stats.objective import held_out, objective, readings, signed
from oven_agents.stats.symptoms import KL as REFERENCE_KL
from oven_agents.stats.symptoms import LENGTH, kl_sighting, length_sighting, sighted
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import RunStarted, Vote

BITS, KL = "frontier/bits_per_byte", "frontier/kl"
BETA, SCALE, ROLLBACK = "grpo.beta", "optimizer.lr_scale", "run.rollback"


class Drift(Agent):
    """Signals: the frontier calibrator's change against step 0 (docs/judging.md). The bits per byte of a frontier
    model's answers, or the divergence from it, have grown by more than LARGE or FAR, and grew at each of the newest
    READINGS. The texts are fixed and never trained on, so a reading has no noise, and growth means drift.
    Without a frontier model: a KL to the reference that triples within 15 ticks, and answers that shrink below 0.6 of
    their length (oven_agents.stats.symptoms).

    Actions: raises alerts for the last two as long as they last. While the KL runs away or the frontier readings grow,
    and the run's own held-out readings do not rise, it proposes to hold the policy closer: β up by half, or the rate
    down by a third if there is no β above 0. It is never confident enough to act alone: a policy trained for one task
    loses other skills without harm to this task (the alignment tax, Ouyang et al. 2022, arXiv 2203.02155, §4.2). The
    user has to decide whether this matters.

    False alarms: training for a form that the frontier model does not write (digits alone, another language) moves the
    policy away as long as it learns. The agent is silent if a held-out metric rises; without one, the training's own
    objective must rise. After its change it waits for READINGS new ones.

    Limits: the agent only sees what the probes' prompts ask for. A policy that drifts in one jump and stays there is no
    longer growing when there are enough readings. The outcomes of its votes were not measured yet.
    """

    moves = (BETA, SCALE)

    READINGS = 4
    """Newest readings that must grow, each above the one before. A wave as long as the learning rate's gives three.
    More come too late if readings are 50 steps apart."""
    LARGE = 0.05
    """Bits per byte by which the answers became less likely. An English text of a good model has about 0.6 to 1, so
    this is a twentieth or more. No measurement is recorded."""
    FAR = 0.1
    """Nats per position by which the divergence grew. At a tenth, the frontier model finds the policy's next byte a
    tenth less likely than before. No measurement is recorded."""
    FRESH = 5
    """Ticks for which a reading is new. Votes may be rarer than ticks."""
    CLOSER = 1.5
    """Factor of β: half of what entropy_collapse uses, because nothing is lost yet."""
    SLOWER = 0.67
    """Factor of the rate if there is no β."""
    GAIN = 0.01
    """Forecast gain of the objective, in its unit; small, because the change prevents and repairs nothing."""
    HORIZON = 60
    """Ticks in which the forecast is judged: at least one reading."""

    WAIT = 20
    """Ticks after its change, and ticks back, for a KL that runs away, whose growth is measured over 15 ticks."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        published = {metric.name for metric in run.metrics}
        if not published & {BITS, REFERENCE_KL, LENGTH}:
            return f"the run publishes none of {BITS}, {REFERENCE_KL} and {LENGTH}{unmeasured(run, BITS)}"
        return super().cannot_fire(run) if published & {BITS, REFERENCE_KL} else None

    def alerts(self, window: Window) -> Sequence[Alert]:
        return sighted(window, length_sighting(window), kl_sighting(window))

    def vote(self, window: Window) -> Vote | None:
        since = window.last_change_tick(BETA, SCALE, ROLLBACK)
        for metric, large, unit in ((BITS, self.LARGE, "bits per byte"), (KL, self.FAR, "nats per place")):
            count = int(self.READINGS)
            readings_found = window.surviving_series(metric, after=since, last=count)
            values = [value for _, value in readings_found]
            if (
                len(values) < count
                or not all(map(math.isfinite, values))
                or not window.is_new(readings_found[-1][0] + int(self.FRESH))
            ):
                continue
            grows = all(later > before for before, later in pairwise(values))
            if grows and values[-1] > large and not self._learns(window, readings_found[0][0]):
                why = (
                    f"{metric} is {values[-1]:.3g} {unit} above step 0 and grew at each of {count} readings (from "
                    f"{values[0]:.3g}) while nothing improved"
                )
                return self._closer(window, why, "symptom:frontier_drift")
        return self._from_reference(window, since)

    def _from_reference(self, window: Window, since: int) -> Vote | None:
        ran, began = kl_sighting(window), window.tick - int(self.WAIT)
        if ran is None or (since >= 0 and since > began):
            return None
        gains = self._learns(window, began) if readings(window) else self._rises(window, began)
        return None if gains else self._closer(window, ran.why, "symptom:kl_runaway")

    def _learns(self, window: Window, since: int) -> bool:
        """Return whether held-out readings, or otherwise the objective, improved since the growth began."""
        if held_out(window.run) is not None:
            seen = readings(window)
            before, after = [v for tick, v in seen if tick <= since], [v for tick, v in seen if tick > since]
            return not before or not after or max(after) > max(before)
        return self._rises(window, since)

    def _rises(self, window: Window, since: int) -> bool:
        target = objective(window.run)
        values = [signed(target, 1) * v for tick, v in window.surviving_series(target.name) if tick >= since]
        half = len(values) // 2
        return half < 1 or sum(values[half:]) / (len(values) - half) > sum(values[:half]) / half

    def _closer(self, window: Window, why: str, symptom: str) -> Vote | None:
        beta, scale = window.knobs.get(BETA), window.knobs.get(SCALE)
        if beta is not None and beta.number > 0 and (raised := beta.bounded(beta.number * self.CLOSER)) > beta.number:
            return self._say(window, BETA, raised, f"{why}: {BETA} {beta.number:.3g} → {raised:.3g}", symptom)
        if scale is not None and (lowered := scale.bounded(scale.number * self.SLOWER)) < scale.number / 1.2:
            return self._say(window, SCALE, lowered, f"{why}: {SCALE} {scale.number:.3g} → {lowered:.3g}", symptom)
        return None

    def _say(self, window: Window, actuator: str, value: float, why: str, symptom: str) -> Vote:
        target = held_out(window.run) or objective(window.run)
        return window.propose(
            actuator, value, confidence=needs_second(window.run), why=why, target=target.name,
            expected_change=signed(target, self.GAIN), horizon=int(self.HORIZON), evidence=(symptom,),
        )  # fmt: skip
