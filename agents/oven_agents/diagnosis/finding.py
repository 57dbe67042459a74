"""The findings of a diagnosis: their kinds, what to do about each, and the nodes of the knowledge graph behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

Severity = Literal["act", "advise", "note"]
MIN_ACT_CONFIDENCE: Final = 0.8
"""Minimum confidence of a finding to act on."""
MIN_ADVICE_CONFIDENCE: Final = 0.5
"""Minimum confidence of a finding that gives advice. Findings with less are notes."""


class Finding(BaseModel):
    """One thing that is wrong with a run."""

    model_config = ConfigDict(frozen=True)

    kind: str = Field(description="what is wrong, e.g. lr_too_low; many kinds are nodes of the knowledge graph")
    onset_step: int | None = Field(description="step at which it began")
    severity: Severity = Field(description="act: change something now; advise: consider a change; note: be aware")
    confidence: float = Field(ge=0, le=1, description="certainty that this is wrong; not calibrated")
    message: str = Field(description="the figures behind the finding, and what the controller did about it")
    remedy: str = Field(description="what to change")


class Kind(NamedTuple):
    """What is known about a kind of finding in advance."""

    remedy: str
    symptom: str
    """The symptom in the knowledge graph for which the graph suggests remedies."""
    explains: tuple[str, ...] = ()
    """Kinds that follow from this one. If both are found, the others are only notes."""


_FAILURES: Final = (
    "diverged", "nan", "reward_collapse", "stuck", "dead", "spike_recovered", "plateau", "kl_runaway",
)  # fmt: skip
_SLOW: Final = ("stuck", "dead", "plateau")
KINDS: Final = {
    # Causes, which are also causes in the knowledge graph.
    "lr_too_low": Kind("raise the learning rate by a factor of 3 to 10", "gradients_aligned", _SLOW),
    "lr_too_high": Kind(
        "lower the learning rate by a factor of 3 to 10", "update_ratio_high", (*_FAILURES, "entropy_collapse")
    ),
    "skewed_mixture": Kind("give every part of the data that can still be learnt a share", "starved_level", _SLOW),
    "weak_teacher": Kind(
        "use a stronger teacher, or lower the weight of the KL term",
        "kl_anchor_binds",
        (*_SLOW, "overfit", "kl_penalty_too_strong"),
    ),
    "kl_penalty_too_strong": Kind("lower the weight of the KL term to a third", "kl_anchor_binds", _SLOW),
    "kl_penalty_too_weak": Kind("raise the weight of the KL term by a factor of 3", "kl_runaway", ("kl_runaway",)),
    "weight_decay_too_high": Kind(
        "lower the weight decay to a tenth", "weights_shrink", (*_FAILURES, "weights_shrink")
    ),
    "confidence_untaught": Kind(
        "teach spread confidences before reinforcement, or weigh calibration more", "confidence_collapse"
    ),
    "overconfident": Kind(
        "weigh calibration more in the reward, and teach confidences that match the share of right answers",
        "calibration_drift",
    ),
    # States of a run.
    "nan": Kind("go back to a checkpoint before the first NaN, and lower the learning rate", "loss_nan"),
    "diverged": Kind("go back to a checkpoint before the rise, and lower the learning rate", "loss_creeps_up"),
    "reward_collapse": Kind("go back to a checkpoint before the fall, and lower the learning rate", "policy_collapse"),
    "dead": Kind(
        "check that labels are not all masked, that the trained parameters have gradients, and that the loss is scaled "
        "correctly; then start again",
        "grad_norm_vanishes",
        ("stuck", "plateau", "zero_advantage_groups"),
    ),
    "stuck": Kind(
        "check the data and the labels first; then try rates 3 times higher and 3 times lower for a few hundred steps",
        "gradients_aligned",
        ("plateau",),
    ),
    "zero_rate": Kind("set a learning rate above 0, or check the scheduler", "gradients_aligned", ("dead", "stuck")),
    "schedule_ended": Kind(
        "stretch the schedule over the planned number of steps, or stop when the rate is 0", "gradients_aligned"
    ),
    "always_clipped": Kind(
        "nothing if the run learns well; otherwise raise the clip to the usual norm and lower the rate",
        "grad_norm_growth",
    ),
    "never_evaluated": Kind("measure a loss on held-out data now and then", "heldout_loss_rises"),
    "steps_out_of_order": Kind("nothing if the run was resumed; otherwise review each run's part alone", "loss_spike"),
    "zero_advantage_groups": Kind(
        "use prompts of medium difficulty, more completions per prompt, or a finer reward", "zero_advantage_groups"
    ),
    "plateau": Kind(
        "if the reward can still rise: try a higher rate, easier prompts, or more completions per prompt",
        "gradients_aligned",
    ),
    "spike_recovered": Kind("nothing, unless spikes recur: then skip the batches around them", "loss_spike"),
    "overfit": Kind("use the checkpoint with the best held-out value, or train on more data", "heldout_loss_rises"),
    "reward_hacked": Kind("check what the reward pays for, and weigh its parts anew", "reward_up_heldout_down"),
    "truncated": Kind("raise the limit on completion tokens", "truncated_completions"),
    "entropy_collapse": Kind("lower the learning rate, or add an entropy bonus or KL term", "entropy_collapse"),
    "kl_runaway": Kind("raise the weight of the KL term, or lower the learning rate", "kl_runaway"),
}
"""Kinds of findings with fixed remedies. Other kinds are symptoms of the knowledge graph."""
NO_REMEDY: Final = "nothing yet; watch this metric"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason to believe that something is wrong."""

    kind: str
    weight: float
    """The probability that the kind is right, from this evidence alone."""
    tick: int
    """Tick at which it began."""
    text: str
    corrected: str = ""
    """The knob by which the controller corrected it, if any."""
    metric: str = ""
    """The metric that shows it, if it is not the run's objective."""


def remedy_of(kind: str) -> str:
    """Return what to change, in a few words."""
    return KINDS[kind].remedy if kind in KINDS else NO_REMEDY
