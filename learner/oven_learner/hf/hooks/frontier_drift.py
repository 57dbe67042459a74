"""Publishes the `frontier/*` metrics, which show how far the policy drifts from a frontier model's answers.

Every N steps, the policy is teacher-forced over the answers to a fixed set of prompts. These answers are never trained
on (oven_learner.frontier_divergence). The main metrics are changes since the first reading, because a policy's distance
from another model says little, but its drift is informative. The first reading is taken at step 0 if the answers have
arrived by then. Another process fetches them without delaying training, and nothing is published until they arrive.
Readings use no random numbers and no gradients.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_core.protocol.messages import MetricSpec
from oven_learner.frontier_divergence import PolicyMeter, Reading
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks
from oven_runs.home import probe_set
from oven_runs.settings.committee_settings import FrontierSettings

log = logging.getLogger("oven.learner")

BITS, KL = "frontier/bits_per_byte", "frontier/kl"
LEVEL = "_level"
"""Suffix of the metrics with the measured values themselves, instead of the changes since the first reading."""
METRICS = (
    MetricSpec(name=BITS, better="down", unit="bits per byte, change since the first reading"),
    MetricSpec(name=KL, better="down", unit="nats per position (lower bound), change since the first reading"),
    MetricSpec(name=BITS + LEVEL, better="down", unit="bits per byte of the frontier model's answers"),
    MetricSpec(
        name=KL + LEVEL, better="down", unit="nats per position, a lower bound on the KL from the frontier model"
    ),
)


class FrontierDrift(StepHook):
    """Measures the policy's drift on rank 0, every `settings.every` steps."""

    def __init__(self, trainer: Any, settings: FrontierSettings, run_folder: Path) -> None:
        self._trainer, self._settings, self._folder = trainer, settings, run_folder
        self._meter: PolicyMeter | None = None
        self._first: Reading | None = None
        self._is_active = False
        self._key = ""  # identifies the set of answers (`probe_set.key_of`)

    def begin(self, ranks: Ranks) -> None:
        """Take the first reading, with the initial weights, if the answers have arrived."""
        trainer, settings = self._trainer, self._settings
        self._meter = self._first = None
        self._is_active = ranks.leader
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            self._give_up("FSDP or DeepSpeed shards the policy, so one rank cannot evaluate it")
        if self._is_active:
            try:
                prompts = probe_set.read_prompts(Path(settings.prompts))
            except ConfigError as error:
                self._give_up(str(error))
            else:
                self._key = probe_set.key_of(settings.provider, settings.base_url, settings.model, prompts)
                self._start_if_answers_arrived()

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return METRICS

    def end_step(self, step: StepEnd) -> None:
        if not self._is_active:
            return
        if self._meter is None:
            self._start_if_answers_arrived()
            step.metrics |= self._metrics(self._first)
        elif step.trained_steps % self._settings.every == 0 or step.is_last:
            step.metrics |= self._metrics(self._measure())

    def _start_if_answers_arrived(self) -> None:
        """Once the answers are available, take the first reading, or load it if the run is resumed."""
        try:
            answers = probe_set.read(self._folder, self._key)
            if answers is None:
                return
            self._meter = PolicyMeter(answers, self._policy, self._trainer.processing_class)
        except (ConfigError, OSError, AttributeError) as error:
            self._give_up(reason(error))
            return
        if skipped_count := self._meter.skipped_count:
            log.warning(
                "skipped %d of %d frontier answers that the policy cannot read", skipped_count, len(answers.probes)
            )
        if answers.missing_features:
            log.warning("frontier: %s", answers.missing_features)
        step = int(self._trainer.state.global_step)
        saved_reading = self._load_first_reading() if step else None
        self._first = saved_reading or self._measure()
        if saved_reading is not None or self._first is None:
            return
        if step:
            log.warning("frontier: the answers arrived at step %d; changes are relative to that step", step)
        first = {"step": step, "bits_per_byte": self._first.bits_per_byte, "kl": self._first.kl}
        try:
            write_atomic(self._first_reading_file, json.dumps(first) + "\n")
        except OSError as error:
            log.warning("frontier: cannot save the first reading, so a resumed run will start over: %s", reason(error))

    @property
    def _first_reading_file(self) -> Path:
        return probe_set.path_of(self._folder, self._key).with_suffix(".begin.json")

    def _load_first_reading(self) -> Reading | None:
        try:
            return TypeAdapter(Reading).validate_json(self._first_reading_file.read_bytes())
        except (OSError, ValidationError):
            return None

    @property
    def _policy(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def _measure(self) -> Reading | None:
        """Measure the policy. Return None on failure: a failed measurement must not stop training."""
        assert self._meter is not None
        try:
            return self._meter.read(self._policy)
        except Exception as error:  # out of memory, or an unusual model
            self._give_up(reason(error))
            return None

    def _metrics(self, latest: Reading | None) -> dict[str, float]:
        first = self._first
        if latest is None or first is None:
            return {}
        metrics = {BITS: latest.bits_per_byte - first.bits_per_byte, BITS + LEVEL: latest.bits_per_byte}
        if latest.kl is not None and first.kl is not None:
            metrics |= {KL: latest.kl - first.kl, KL + LEVEL: latest.kl}
        return metrics

    def _give_up(self, cause: str) -> None:
        self._is_active = False
        log.warning("frontier: stopped measuring: %s", cause)
