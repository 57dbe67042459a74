"""Publishes held-out evaluations of an attached trainer, computed by the user's function or by the trainer itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Trainer, TrainerControl, TrainerState

from oven_core.protocol.messages import MetricSpec
from oven_learner.client.held_out_evaluation import Evaluation
from oven_learner.client.oven_client import OvenClient
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks

EVAL = "eval/"
"""Prefix of the announced names of evaluation metrics."""
COST_SUFFIXES = ("runtime", "_per_second", "_time", "num_tokens")
"""Suffixes of results that measure the evaluation itself, not the model."""


class UserEvaluation(Evaluation, StepHook):
    """Calls the user's function at the start, every few steps, at the end, and when an agent requests it."""

    new_results: dict[str, float] | None = None
    """Results of the evaluation at the end of the last step, or None if there was none."""

    def begin(self, ranks: Ranks) -> None:
        self.last = {}

    def first_results(self) -> dict[str, float]:
        """Return the results before the first step. Measure them at the first call."""
        return self.last or self.measure()

    def end_step(self, step: StepEnd) -> None:
        self.new_results = self.measure_if_due(step.trained_steps, is_last=step.is_last)
        step.metrics |= self.new_results or {}


class TrainerEvaluation(StepHook):
    """Publishes the trainer's own evaluations, each with the next step."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer: Any = trainer
        self.last: dict[str, float] = {}
        """Latest value of each metric."""
        self._pending: dict[str, float] = {}
        self._requested = False
        self._measured_names: dict[str, None] = {}  # ordered names of all results so far

    def request(self, _: float | None) -> None:
        self._requested = True

    def begin(self, ranks: Ranks) -> None:
        self.last, self._pending = {}, {}

    def held_out_specs(self) -> tuple[MetricSpec, ...]:
        """Return the main metric of each evaluation set, and the known metrics of `compute_metrics`. If
        `metric_for_best_model` names a metric other than the loss, only that one counts as held out, and the others are
        only shown. The main metric is the loss, or the reward for trainers with reward functions. Their loss is little
        more than β × KL, which grows while the policy learns."""
        trainer = self._trainer
        if trainer.args.eval_strategy == "no":
            return ()
        main_metric, direction = ("reward", "up") if hasattr(trainer, "reward_funcs") else ("loss", "down")
        directions = {EVAL + prefix + main_metric: direction for prefix in self._set_prefixes()}
        target = self.declared_target()
        if target:
            directions = {target: "up" if trainer.args.greater_is_better else "down", **directions}
        directions |= {name: "neither" for name in self._computed_names() if name not in directions}
        return tuple(
            MetricSpec.model_validate({"name": name, "better": better, "held_out": not target or name == target})
            for name, better in directions.items()
        )

    def _computed_names(self) -> list[str]:
        """Return the names of the metrics that `compute_metrics` returned at earlier evaluations, including those in
        the log of the checkpoint from which the trainer resumed. Before the first evaluation, the names are unknown. It
        is unknown whether higher is better, so these metrics cannot judge changes."""
        if getattr(self._trainer, "compute_metrics", None) is None:
            return []
        logged = (name for entry in self._trainer.state.log_history for name in self._by_announced_name(entry))
        return [name for name in dict.fromkeys((*self._measured_names, *logged)) if not name.endswith(COST_SUFFIXES)]

    def declared_target(self) -> str:
        """Return the metric named by `metric_for_best_model`, or an empty string for transformers' default, "loss"."""
        name = (self._trainer.args.metric_for_best_model or "loss").removeprefix("eval_")
        return EVAL + name if name != "loss" else ""

    def record(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Record an evaluation by the trainer, and return its metrics under their announced names. These are
        `eval/loss`, or `eval/NAME_loss` with several evaluation sets. TRL omits the set's name for some metrics. For
        example, it logs the reward of every set as `eval_reward`."""
        results = self._by_announced_name(metrics)
        self._pending |= results
        self.last |= results
        self._measured_names |= dict.fromkeys(results)
        return results

    def on_best_restored(self, state: TrainerState) -> None:
        """Make the results of the best step the latest ones, because the trainer has loaded that step's checkpoint."""
        for entry in state.log_history:
            if entry["step"] == state.best_global_step:
                self.last |= self._by_announced_name(entry)

    def _by_announced_name(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the trainer's evaluation metrics under their announced names."""
        # `runtime` identifies the set, because the trainer itself always adds it with the name of the set.
        prefix = next((prefix for prefix in self._set_prefixes() if f"eval_{prefix}runtime" in metrics), "")
        return {
            EVAL + prefix + name.removeprefix("eval_").removeprefix(prefix): float(value)
            for name, value in metrics.items()
            if name.startswith("eval_") and isinstance(value, int | float)
        }

    def end_step(self, step: StepEnd) -> None:
        step.metrics |= self._pending
        self._pending = {}

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        if self._requested:
            self._requested, control.should_evaluate = False, True

    def _set_prefixes(self) -> list[str]:
        sets = getattr(self._trainer, "eval_dataset", None)
        return [f"{name}_" for name in sets] if isinstance(sets, dict) else [""]
