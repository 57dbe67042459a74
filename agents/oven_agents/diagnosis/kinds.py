"""What is known about each kind of finding in advance: what to change, and what that costs if the finding is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class Kind(NamedTuple):
    """A kind of finding."""

    remedy: str
    """What to change. `{back}` says to which checkpoint to go back."""
    symptom: str = ""
    """The symptom in the knowledge graph for which the graph suggests remedies. It has none for some kinds."""
    explains: tuple[str, ...] = ()
    """Kinds that follow from this one. If both are found, the others are only notes."""
    cost: str = "a few hundred steps with other settings"
    """What it costs to follow the remedy if the finding is wrong. `{steps}` is the number of steps since the onset, and
    `{total}` that of the run."""


NO_REMEDY: Final = "no action needed yet; watch this metric"
_LOST_STEPS: Final = "the {steps} steps since then, because you go back"
_LOWER_RATE: Final = "lower the learning rate by a factor of 3 to 10"
NOTHING: Final = "nothing but the time to look"

_SLOW: Final = ("stuck", "dead", "plateau")
_FOLLOWS_FROM_STUCK: Final = ("plateau", "zero_advantage_groups", "overfit", "held_out_worse")
_FAILURES: Final = (*_SLOW, "held_out_worse", "diverged", "nan", "reward_collapse", "spike_recovered", "kl_runaway")
KINDS: Final = {
    # Causes, which are also causes in the knowledge graph.
    "lr_too_low": Kind("raise the learning rate by a factor of 3 to 10", "gradients_aligned", _SLOW),
    "lr_too_high": Kind(
        "lower the learning rate by a factor of 3 to 10",
        "update_ratio_high",
        (*_FAILURES, "entropy_collapse", "missing_warm_up"),
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
    "zero_rate": Kind("set a learning rate above 0, or check the scheduler", explains=("dead", "stuck"), cost=NOTHING),
    # States of a run.
    "dead": Kind(
        "check that labels are found and not all masked, that the trained parameters get gradients, and that mixed "
        "precision does not round the loss to 0; then start again",
        "grad_norm_vanishes",
        explains=("stuck", *_FOLLOWS_FROM_STUCK, "grad_norm_vanishes"),
        cost="all {total} steps, because you start again",
    ),
    "stuck": Kind(
        "check that inputs and labels match, and that the model can fit a single batch; then try a learning rate 3 "
        "times higher and one 3 times lower",
        explains=_FOLLOWS_FROM_STUCK,
        cost="two short runs",
    ),
    "plateau": Kind(
        "if the reward is not at its maximum: try a learning rate 3 times higher, easier prompts, or more completions "
        "per prompt",
        cost="two or three short runs",
    ),
    "nan": Kind("{back}, and lower the learning rate by a factor of 3 to 10", "loss_nan", cost=_LOST_STEPS),
    "diverged": Kind(
        "{back}, and lower the learning rate by a factor of 3 to 10",
        "loss_creeps_up",
        explains=("held_out_worse",),
        cost=_LOST_STEPS,
    ),
    "reward_collapse": Kind(
        "{back}, and lower the learning rate by a factor of 3 to 10",
        "policy_collapse",
        explains=("held_out_worse", "length_drift"),
        cost=_LOST_STEPS,
    ),
    "spike_recovered": Kind(
        "no action needed; if spikes recur, skip the batches around them", "loss_spike", cost=NOTHING
    ),
    "held_out_worse": Kind(
        "no action needed unless it stays worse; then use the checkpoint with the best value",
        "heldout_loss_rises",
        cost=NOTHING,
    ),
    "overfit": Kind(
        "use the checkpoint with the best held-out value; to improve on it, add training data, or regularise (dropout, "
        "weight decay, augmentation)",
        "heldout_loss_rises",
        explains=("held_out_worse", "memorising"),
        cost=_LOST_STEPS,
    ),
    "memorising": Kind(
        "train for fewer epochs, or add training data; no action needed while held-out metrics improve",
        cost=NOTHING,
    ),
    "reward_hacked": Kind(
        "read some completions to see what earns the reward; then change the reward, or raise the weight of the KL "
        "term",
        "reward_up_heldout_down",
        explains=("held_out_worse",),
        cost="the time to read them",
    ),
    "truncated": Kind(
        "double the token limit (max_completion_length in TRL), or reward shorter answers",
        "truncated_completions",
        cost="time and memory for longer completions",
    ),
    "empty_completions": Kind(
        "read some completions; then give empty ones the lowest reward, check the end-of-sequence and stop tokens, or "
        "lower the learning rate by a factor of 3",
        "length_shrinks",
        explains=("length_shrinks",),
    ),
    "length_drift": Kind(
        "read some long completions; if they are padding, subtract a penalty for the length from the reward; in GRPO, "
        "do not divide the loss by each completion's length",
        "length_drift",
    ),
    "zero_advantage_groups": Kind(
        "these groups give no gradient: use prompts of medium difficulty, or more completions per prompt",
        "zero_advantage_groups",
    ),
    "grad_norm_vanishes": Kind(
        "no action needed while the run still improves; otherwise check that rewards or labels still differ",
        "grad_norm_vanishes",
    ),
    "entropy_collapse": Kind("lower the learning rate, or add an entropy bonus or KL term", "entropy_collapse"),
    "kl_runaway": Kind("raise the weight of the KL term, or lower the learning rate", "kl_runaway"),
    "chosen_less_likely": Kind(
        "let the model answer some prompts; if its answers got worse, halve the learning rate, double beta, or add the "
        "SFT loss on the chosen answers",
    ),
    "slow_steps": Kind(
        "compare before and after this step: other jobs and the clock of the GPU (nvidia-smi), the time spent waiting "
        "for data, the length of inputs, and the unused memory",
        "slow_steps",
        cost=NOTHING,
    ),
    "memory_grows": Kind(
        "look for values that are kept at each step, such as losses with their graphs (use .item() or .detach()), "
        "lists of outputs, or caches without a limit",
        cost=NOTHING,
    ),
    # How the run was set up and logged.
    "missing_warm_up": Kind(
        "add a linear warm-up over the first 1 to 5 % of the steps, or lower the peak rate by a factor of 2 to 3",
        explains=("spike_recovered",),
    ),
    "schedule_ended": Kind(
        "stretch the schedule over the planned number of steps, or stop when the rate is 0",
        cost=NOTHING,
    ),
    "always_clipped": Kind(
        "no action needed if the run learns well; otherwise raise the clip to the usual norm, and with SGD lower the "
        "learning rate by the same factor",
    ),
    "never_evaluated": Kind(
        "measure the loss on held-out data, about 20 times per run",
        cost="the time of the evaluations",
    ),
    "steps_out_of_order": Kind(
        "if these are separate runs, split the file and review each, because the other findings mix them; if one run "
        "was resumed, ignore this",
        cost=NOTHING,
    ),
}
"""Kinds of findings with fixed remedies. Other kinds are symptoms of the knowledge graph."""


TITLES: Final = {
    "held_out_worse": "held-out metric worse than its best",
    "reward_collapse": "policy collapse",
    "spike_recovered": "passing spike",
    "never_evaluated": "no held-out metric in this log",
    "steps_out_of_order": "several runs, or a resumed one",
    "grad_norm_growth": "gradient norm grows",
    "grad_norm_vanishes": "gradient norm vanishes",
    "always_clipped": "gradient always clipped",
}
"""Printed names of kinds whose identifiers are not plain English."""


def lower_rate_from(steps: Sequence[int], good_step: int) -> tuple[str, str]:
    """Return the remedy for a run that broke after `good_step`, one of its `steps`, and what the remedy costs if the
    finding is wrong."""
    if good_step <= steps[0]:
        cost = f"all {steps[-1]:,} steps, because you start again"
        return "restart from the initial weights with a learning rate lower by a factor of 3 to 10", cost
    cost = f"the {steps[-1] - good_step:,} steps since then, because you go back"
    return f"go back to a checkpoint at or before step {good_step:,}, and {_LOWER_RATE}", cost


def remedy_of(kind: str, step: int, first_step: int) -> str:
    """Return what to change about a finding since a step of a run that begins at `first_step`."""
    back = f"go back to a checkpoint before step {step:,}" if step > first_step else "start again"
    return KINDS[kind].remedy.format(back=back) if kind in KINDS else NO_REMEDY


def cost_of(kind: str, step: int, last_step: int) -> str:
    """Return what following the remedy costs if the finding is wrong. It goes back from `last_step` to `step`."""
    costs = {"steps": f"{last_step - step:,}", "total": f"{last_step:,}"}
    return KINDS[kind].cost.format(**costs) if kind in KINDS else ""


def title_of(kind: str) -> str:
    """Return the name of a kind in words."""
    if kind in TITLES:
        return TITLES[kind]
    return kind.replace("lr_", "learning_rate_").replace("kl_", "KL_").replace("_", " ").replace("nan", "NaN")
