"""`frontier/*`: how far the policy has moved from a frontier model's answers to a fixed set of prompts.

Every N steps the policy is teacher-forced over these answers (oven_learner.frontier), which are never trained on. What
is published is the change against the first reading, at step 0 where the answers were there by then: a policy's
distance from another model says little, its drift does. Nothing here draws a random number or touches a gradient. The
set is fetched by a process beside the training, which does not wait for it: until it is there nothing is published.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, OvenError, reason
from oven_core.files import write_atomic
from oven_core.protocol.messages import MetricSpec
from oven_learner.frontier.policy_reading import PolicyReading, Reading
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.ranks import Ranks
from oven_runs.home import probe_set
from oven_runs.settings.committee_settings import FrontierSettings

log = logging.getLogger("oven.learner")

BITS, KL = "frontier/bits_per_byte", "frontier/kl"
LEVEL = "_level"
METRICS = (
    MetricSpec(name=BITS, better="down", unit="bits per byte, change against the first reading"),
    MetricSpec(name=KL, better="down", unit="nats per place, at least; change against the first reading"),
    MetricSpec(name=BITS + LEVEL, better="down", unit="bits per byte of the frontier model's answers"),
    MetricSpec(name=KL + LEVEL, better="down", unit="nats per place, at least, to the frontier model"),
)


class FrontierCalibration(StepHook):
    """One attached trainer's."""

    def __init__(self, trainer: Any, settings: FrontierSettings, run_folder: Path) -> None:
        self._trainer, self._settings, self._folder = trainer, settings, run_folder
        self._reading: PolicyReading | None = None
        self._first: Reading | None = None
        self._reads = False

    def begin(self, ranks: Ranks) -> None:
        """The weights are those of the step that training begins with."""
        trainer = self._trainer
        self._reading = self._first = None
        self._reads = ranks.leader
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            self._give_up("FSDP or DeepSpeed shards the policy, which one rank cannot read texts with")
        try:
            prompts = probe_set.read_prompts(Path(self._settings.prompts)) if self._reads else ()
        except ConfigError as error:
            self._give_up(str(error))
        else:
            settings = self._settings
            self._key = probe_set.key(settings.provider, settings.base_url, settings.model, prompts)
        if self._reads and self._found():
            self._begin()

    def announced(self) -> tuple[MetricSpec, ...]:
        return METRICS

    def end_step(self, step: StepEnd) -> None:
        if not self._reads:
            return
        due = step.trained % self._settings.every == 0 or step.last
        if self._reading is None:
            if self._found():
                self._begin()
                step.metrics |= self._metrics(self._first)
        elif due:
            step.metrics |= self._metrics(self._now())

    def _found(self) -> bool:
        """Whether the set is there, and fits."""
        try:
            found = probe_set.read(self._folder, self._key)
            if found is None:
                return False
            self._reading = PolicyReading(found, self._policy, self._trainer.processing_class)
        except (ConfigError, OSError, AttributeError) as error:
            self._give_up(str(error) if isinstance(error, OvenError) else reason(error))
            return False
        if self._reading.left_out:
            log.warning("%d of %d frontier answers are left out: the policy cannot read them", self._reading.left_out,
                        len(found.probes))  # fmt: skip
        if found.lacks:
            log.warning("frontier: %s", found.lacks)
        return True

    def _begin(self) -> None:
        """The first reading, or the one that this run made before it was resumed."""
        step = int(self._trainer.state.global_step)
        kept = self._kept()
        if kept is not None and step:
            self._first = kept
            return
        self._first = self._now()
        if self._first is None:
            return
        if step:
            log.warning("frontier: the answers came at step %d, and changes are against that step", step)
        first = {"step": step, "bits_per_byte": self._first.bits_per_byte, "kl": self._first.kl}
        try:
            write_atomic(self._beginning, json.dumps(first) + "\n")
        except OSError as error:
            log.warning("frontier: a resumed run will begin to count anew: %s", reason(error))

    @property
    def _beginning(self) -> Path:
        return probe_set.path(self._folder, self._key).with_suffix(".begin.json")

    def _kept(self) -> Reading | None:
        try:
            said = json.loads(self._beginning.read_text())
            return Reading(float(said["bits_per_byte"]), None if said["kl"] is None else float(said["kl"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    @property
    def _policy(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def _now(self) -> Reading | None:
        """None where the policy cannot be read, of which training must not die."""
        assert self._reading is not None
        try:
            return self._reading.read(self._policy)
        except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:  # memory, or a model's ways
            self._give_up(reason(error))
            return None

    def _metrics(self, now: Reading | None) -> dict[str, float]:
        first = self._first
        if now is None or first is None:
            return {}
        found = {BITS: now.bits_per_byte - first.bits_per_byte, BITS + LEVEL: now.bits_per_byte}
        if now.kl is not None and first.kl is not None:
            found |= {KL: now.kl - first.kl, KL + LEVEL: now.kl}
        return found

    def _give_up(self, why: str) -> None:
        self._reads = False
        log.warning("frontier: nothing is measured: %s", why)
