"""What is known about each kind of finding in advance: what to change, and what that costs if the finding is wrong."""

from __future__ import annotations

from typing import Final, NamedTuple


class Kind(NamedTuple):
    """A kind of finding."""

    remedy: str
    symptom: str
    """The symptom in the knowledge graph for which the graph suggests remedies."""
    explains: tuple[str, ...] = ()
    """Kinds that follow from this one. If both are found, the others are only notes."""
    cost: str = "a few hundred steps with other settings"
    """What it costs to follow the remedy if the finding is wrong. `{steps}` is the number of steps since the onset."""


NO_REMEDY: Final = "nothing yet; watch this metric"
_LOST_STEPS: Final = "the {steps} steps since then"
_NOTHING: Final = "nothing but the time to look"

_SLOW: Final = ("stuck", "dead", "plateau")
_FAILURES: Final = (*_SLOW, "diverged", "nan", "reward_collapse", "spike_recovered", "kl_runaway")
KINDS: Final = {
    # Causes, which are also causes in the knowledge graph.
    "lr_too_low": Kind("raise the learning rate by a factor of 3 to 10", "gradients_aligned", _SLOW),
    "lr_too_high": Kind(
        "lower the learning rate by a factor of 3 to 10", "update_ratio_high", (*_FAILURES, "entropy_collapse")
    ),
    "skewed_mixture": Kind("give every part of the data that can still be learnt a share", "starved_level", _SLOW),
    "weak_teacher": Kind(
        "use a stronger teacher, or lower the weight of the KL term", "kl_anchor_binds",
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
    "zero_rate": Kind(
        "set a learning rate above 0, or check the scheduler", "gradients_aligned", ("dead", "stuck"), _NOTHING
    ),
    # States of a run.
    "dead": Kind(
        "check that some labels are not masked, that the trained parameters get gradients, and that mixed precision "
        "does not round the loss to 0; then start again",
        "grad_norm_vanishes",
        ("stuck", "plateau", "zero_advantage_groups", "grad_norm_vanishes", "loss_drops_suddenly"), _LOST_STEPS,
    ),
    "stuck": Kind(
        "check the data and the labels first; then try learning rates 3 times higher and 3 times lower for a few "
        "hundred steps",
        "gradients_aligned", ("plateau",),
    ),
    "plateau": Kind(
        "if the reward can still rise, try a higher learning rate, easier prompts, or more completions per prompt",
        "gradients_aligned",
    ),
    "nan": Kind(
        "go back to a checkpoint before the first such value, or start again if there is none, with a lower learning "
        "rate", "loss_nan", ("spike_recovered",), _LOST_STEPS,
    ),
    "diverged": Kind(
        "go back to a checkpoint before the rise, and lower the learning rate", "loss_creeps_up",
        ("stuck", "spike_recovered"), _LOST_STEPS,
    ),
    "reward_collapse": Kind(
        "go back to a checkpoint before the fall, and lower the learning rate", "policy_collapse", (), _LOST_STEPS
    ),
    "spike_recovered": Kind(
        "nothing, unless spikes recur; then skip the batches around them", "loss_spike", (), _NOTHING
    ),
    "overfit": Kind(
        "use the checkpoint with the best held-out value; to improve on it, add training data or regularisation",
        "heldout_loss_rises", (), _LOST_STEPS,
    ),
    "reward_hacked": Kind(
        "check what the reward pays for, and change the weights of its parts", "reward_up_heldout_down", (), _NOTHING
    ),
    "truncated": Kind(
        "raise the token limit for completions, or reward shorter answers", "truncated_completions", (),
        "time and memory for longer completions",
    ),
    "zero_advantage_groups": Kind(
        "use prompts of medium difficulty, more completions per prompt, or a finer reward", "zero_advantage_groups"
    ),
    "entropy_collapse": Kind("lower the learning rate, or add an entropy bonus or KL term", "entropy_collapse"),
    "kl_runaway": Kind("raise the weight of the KL term, or lower the learning rate", "kl_runaway"),
    # How the run was set up and logged.
    "schedule_ended": Kind(
        "stretch the schedule over all planned steps, or stop the training when the rate reaches 0",
        "gradients_aligned", (), _NOTHING,
    ),
    "always_clipped": Kind(
        "nothing if the run learns well; otherwise raise the clip to the usual norm, and lower the learning rate",
        "grad_norm_growth",
    ),
    "never_evaluated": Kind(
        "measure a loss on held-out data at regular intervals", "heldout_loss_rises", (), "the time of the evaluations"
    ),
    "steps_out_of_order": Kind(
        "nothing if the run was resumed; otherwise review each run alone", "loss_spike", (), _NOTHING
    ),
}  # fmt: skip
"""Kinds of findings with fixed remedies. Other kinds are symptoms of the knowledge graph."""


def remedy_of(kind: str) -> str:
    """Return what to change, in a few words."""
    return KINDS[kind].remedy if kind in KINDS else NO_REMEDY


def cost_of(kind: str, steps: int) -> str:
    """Return what following the remedy costs if the finding is wrong. `steps` have passed since the onset."""
    return KINDS[kind].cost.format(steps=f"{steps:,}") if kind in KINDS else ""
