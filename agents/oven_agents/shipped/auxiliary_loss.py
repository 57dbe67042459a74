"""Lowers the weight of an auxiliary loss term that dominates the loss, or that has stopped falling late in the run."""

from __future__ import annotations

from statistics import median

from oven_agents.sdk.agent import SHARE_BOUNDS, Agent
from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import firm_confidence, tentative_confidence
from oven_agents.stats.objective import apply_sign, held_out_metric, objective
from oven_core.protocol.messages import RunStarted, Vote

KNOB_PREFIX, METRIC_PREFIX, MTP = "channel.", "channel/", "channel.mtp"


class AuxiliaryLoss(Agent):
    """Signals: an auxiliary term (weight × term) makes up more than MAX_SHARE of the loss over WINDOW steps. Or the run
    is past LATE_PROGRESS and the term has stopped falling: a term that helps at the start competes with the objective
    at the end.

    Actions: halves the term's weight, `channel.<name>`, but only once for the second reason. DeepSeek-V3 lowers the
    weight of multi-token prediction late in training (arXiv 2412.19437, §4.2: 0.3, then 0.1). For that term, late in a
    run, the agent is more confident.

    False alarms: their rate was not measured. For all other terms, both rules are rules of thumb. The agent's
    confidence in them is tentative. A term that is the objective itself, as in
    distillation, is skipped.

    Limits: the agent only knows terms that the trainer announces twice, as the knob `channel.<name>` and as the metric
    `channel/<name>`. In a run without such a term, it cannot vote. The `knowledge` agent handles `channel.kg`.
    """

    moves = ("channel.distill", "channel.sft", "channel.sdpo", MTP, "channel.z_loss")
    """Knobs of the shipped trainers' terms, and of one other common term. The mesh needs exact names."""
    options = dict.fromkeys(("max_share", "late_progress"), SHARE_BOUNDS)

    WINDOW = 40
    """Number of newest steps for the median of a term's share. The two halves show whether the term still falls."""
    MAX_SHARE = 0.6
    """Share of the loss, 0 to 1, above which a term is too heavy. Above 0.95 it is the objective itself."""
    LATE_PROGRESS = 0.75
    """Progress, 0 to 1, after which the weight of a flat term is halved. This is a rule of thumb."""

    def cannot_fire(self, run: RunStarted) -> str | None:
        terms = _find_terms(run)
        if not terms:
            return "the run has no auxiliary loss term: it announces no channel.<name> with a metric channel/<name>"
        has_objective = any(metric.name in ("loss", "reward") for metric in run.metrics)
        return None if has_objective else "the run publishes neither loss nor reward"

    def vote(self, window: Window) -> Vote | None:
        for name in _find_terms(window.run):
            vote = self._halve(window, name)
            if vote is not None:
                return vote
        return None

    def _halve(self, window: Window, name: str) -> Vote | None:
        knob = window.knobs[KNOB_PREFIX + name]
        since = window.last_change_tick(knob.spec.name)
        terms = window.series(METRIC_PREFIX + name, after=since, last=self.WINDOW)
        losses = window.series("loss", after=since, last=self.WINDOW)
        if knob.number <= 0 or len(terms) < self.WINDOW or len(losses) < self.WINDOW:
            return None
        loss = median(losses)
        share = knob.number * median(terms) / loss if loss > 0 else 0.0
        half = self.WINDOW // 2
        is_flat = median(terms[half:]) >= 0.98 * median(terms[:half])
        is_late = window.progress > self.LATE_PROGRESS and is_flat and not window.applied(knob.spec.name)
        if not is_late and not self.MAX_SHARE < share < 0.95:
            return None
        halved = knob.lowered_to(knob.number / 2)
        if halved is None:
            return None
        # The loss includes the term, so it falls with the weight even if the model does not improve.
        target = held_out_metric(window.run) or objective(window.run)
        is_firm = is_late and knob.spec.name == MTP
        confidence = firm_confidence(window.run) if is_firm else tentative_confidence(window.run)
        why = (
            f"{name} makes up {share:.0%} of the loss at {window.progress:.0%} of the run"
            f"{' and has stopped falling' if is_late else ''}: {knob.spec.name} {knob.number:.3g} → {halved:.3g}"
        )
        return window.propose(
            knob.spec.name, halved, confidence=confidence, why=why, target=target.name,
            expected_change=apply_sign(target, 0.01), horizon=60,
            reads=(METRIC_PREFIX + name,),
        )  # fmt: skip


def _find_terms(run: RunStarted) -> list[str]:
    """Return the loss terms that have both a metric and a knob."""
    published = {metric.name for metric in run.metrics}
    names = [spec.name.removeprefix(KNOB_PREFIX) for spec in run.actuators if spec.name in AuxiliaryLoss.moves]
    return [name for name in names if METRIC_PREFIX + name in published]
