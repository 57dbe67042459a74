"""Which lasting change of a metric is which symptom of the knowledge graph, and its minimum size. Pure data.

A size has two parts: standard deviations of a reading, which exclude noise, and a ratio or difference of the levels,
which excludes tiny changes of a precise metric. They were set on the development families of `bench supervisor`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

FAST: Final = 8
"""Maximum readings from onset to alarm for a jump. At 4 standard deviations per reading it takes five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A metric, by name or pattern, and the symptoms of its changes. An empty symptom means none."""

    metric: str
    up: str = ""
    down: str = ""
    jump: str = ""
    """Replaces `up` if the change was fast."""
    size: float = 2.0
    """Minimum change, in standard deviations of one reading."""
    factor: float = 1.0
    """Minimum ratio of the larger level to the smaller."""
    by: float = 0.0
    """Minimum difference of the levels, in the metric's unit."""
    slow: bool = False
    """Whether to also run the Page-Hinkley test, which finds drifts that CUSUM's level follows."""


GAUGES: Final = (
    Gauge(metric="loss", up="loss_creeps_up", jump="loss_spike", size=2.5, factor=1.05, slow=True),
    Gauge(metric="loss", down="loss_drops_suddenly", size=5.0, factor=1.15),
    Gauge(metric="grad_norm", up="grad_norm_growth", size=3.0, factor=1.7),
    Gauge(metric="grad_norm", down="grad_norm_vanishes", size=2.0, factor=3.0),
    Gauge(metric="optim/update_ratio", up="update_ratio_high", down="update_ratio_low", size=3.0, factor=1.6),
    Gauge(metric="optim/weight_norm", up="weight_norm_growth", size=5.0, factor=1.1),
    Gauge(metric="optim/weight_norm", down="weights_shrink", size=5.0, factor=1.05),
    Gauge(metric="optim/grad_momentum_cos", up="gradients_aligned", size=2.0, by=0.25),
    Gauge(metric="optim/grad_momentum_cos", down="gradients_opposed", size=2.0, by=0.25),
    Gauge(metric="reward", down="policy_collapse", size=1.5, factor=1.1),
    Gauge(metric="kl", up="kl_runaway", size=2.5, factor=3.0, by=0.3),
    Gauge(metric="entropy", up="entropy_growth", down="entropy_collapse", size=2.0, factor=1.6),
    Gauge(metric="frac_reward_zero_std", up="zero_advantage_groups", size=2.0, by=0.2),
    Gauge(metric="completions/mean_length", up="length_drift", down="length_shrinks", size=2.0, factor=1.15),
    Gauge(metric="completions/clipped_ratio", up="truncated_completions", size=2.0, by=0.15),
    Gauge(metric="clip_ratio/*", up="clip_saturated", size=2.0, by=0.1),
    Gauge(metric="committee/abstentions", up="judge_outage", size=3.0, by=0.05),
    Gauge(metric="committee/agreement", down="judge_disagreement", size=2.0, by=0.12),
    Gauge(metric="data/repeated", up="data_repeated", size=3.0, by=0.1),
    Gauge(metric="confidence/std", down="confidence_collapse", size=2.0, factor=2.0),
    Gauge(metric="advantage/std", down="zero_advantage_groups", size=2.0, factor=3.0),
    Gauge(metric="calibration/ece", up="calibration_drift", size=3.0, by=0.05),
    Gauge(metric="sampling/*", up="sampling_mismatch", down="sampling_mismatch", size=4.0, by=0.02),
    Gauge(metric="step_time", up="slow_steps", size=3.0, factor=1.3),
    Gauge(metric="frontier/*", up="frontier_drift", size=3.0, factor=1.2),
)
JUDGES: Final = "rewards/*/mean"
"""Metrics that are compared with one another: the means of single reward functions."""
LEVELS: Final = "reward/*"
"""Metrics of one difficulty level each."""


def gauges_of(metric: str) -> tuple[Gauge, ...]:
    """Return the gauges of a metric. Most of a user's own metrics have none."""
    return tuple(gauge for gauge in GAUGES if gauge.metric == metric or fnmatchcase(metric, gauge.metric))
