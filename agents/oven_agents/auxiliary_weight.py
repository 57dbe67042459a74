"""Takes weight from an auxiliary loss term that outgrew the objective, or that is late in the run."""

from __future__ import annotations

from statistics import median

from oven_agents.agent import Agent
from oven_agents.objective import objective, signed
from oven_agents.odds import THUMB
from oven_agents.window import Window
from oven_controller.messages import RunStarted, Vote

KNOB, TERM = "channel.", "channel/"


class AuxiliaryWeight(Agent):
    """A term that helps at the beginning competes with the objective in the end: multi-token prediction is weighted
    down late in training (DeepSeek-V3, arXiv 2412.19437, §4.2: .3, then .1), and in the system that this agent is taken
    from, .1 to .05 past three quarters of the run. It halves the weight of one term,

    - when the term's share of the loss (weight × term) has been above MOST of the whole for WINDOW steps, or
    - once, when the run is past LATE and the term no longer falls.

    The knobs are `channel.<name>`, which the trainer with loss channels announces, each beside its metric
    `channel/<name>`. A run without them is told that it cannot fire.

    Limits: that less is better late is a rule of thumb, and its confidence says so: it needs a second voice, or a
    person. A term that is the objective itself, as in distillation, has no other to yield to and is left alone.
    """

    moves = ("channel.distill", "channel.sft", "channel.mtp", "channel.z_loss")
    """What the shipped trainer calls its terms, and two that are usual; the mesh takes exact names."""

    WINDOW = 40
    MOST = 0.6
    LATE = 0.75

    def cannot_fire(self, run: RunStarted) -> str | None:
        terms = _terms(run)
        if not terms:
            return f"the run announces no {KNOB}<name> beside a metric {TERM}<name>: it has no auxiliary loss term"
        return (
            None if {"loss", "reward"} & {metric.name for metric in run.metrics} else "the run publishes no objective"
        )

    def vote(self, window: Window) -> Vote | None:
        for name in _terms(window.run):
            if (said := self._too_heavy(window, name)) is not None:
                return said
        return None

    def _too_heavy(self, window: Window, name: str) -> Vote | None:
        knob = window.knobs[KNOB + name]
        since = window.settled_after(knob.spec.name)
        terms = window.series(TERM + name, after=since, last=self.WINDOW)
        losses = window.series("loss", after=since, last=self.WINDOW)
        if knob.number <= 0 or len(terms) < self.WINDOW or len(losses) < self.WINDOW:
            return None
        whole = median(losses)
        share = knob.number * median(terms) / whole if whole > 0 else 0.0
        half = self.WINDOW // 2
        stalled = median(terms[half:]) >= 0.98 * median(terms[:half])
        late = window.progress > self.LATE and stalled and not window.applied(knob.spec.name)
        if not late and not self.MOST < share < 0.95:
            return None
        halved = knob.bounded(knob.number / 2)
        if halved > knob.number / 1.2:
            return None
        target = objective(window.run)
        why = (
            f"{name} is {share:.0%} of the loss at {window.progress:.0%} of the run"
            f"{' and falls no more' if late else ''}: {knob.spec.name} {knob.number:.3g} → {halved:.3g}"
        )
        return window.propose(
            knob.spec.name, halved, confidence=THUMB, why=why, target=target.name,
            expected_change=signed(target, 0.01), horizon=60,
        )  # fmt: skip


def _terms(run: RunStarted) -> list[str]:
    """Loss terms that can be both seen and weighed."""
    published = {metric.name for metric in run.metrics}
    names = [spec.name.removeprefix(KNOB) for spec in run.actuators if spec.name in AuxiliaryWeight.moves]
    return [name for name in names if TERM + name in published]
