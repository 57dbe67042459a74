"""Reads prompts from a curriculum author's file between two steps, and adds the knob `data.authored_share`.

The author is not trusted. Every line of the file is limited in length, validated, and compared with the data and the
held-out set. The knob starts at 0. At 0, authored prompts are stored but not drawn.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from transformers import Trainer, TrainerControl

from oven_core.errors import ConfigError, reason
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.hf.prompts.prompt_admission import SHARE, Admission, key_of, text_of
from oven_learner.hf.prompts.prompt_source import PromptSource
from oven_learner.ranks import Ranks
from oven_runs.home.authored_prompts import MAX_CHARACTERS, AuthoredPrompt, Batch, Topic, read_prompts, write_topics
from oven_runs.settings.language_models import AuthorSettings

if TYPE_CHECKING:
    from oven_learner.rewards.committee import Committee

log = logging.getLogger("oven.learner")

STORED = MetricSpec(name="data/authored", unit="authored prompts that can be drawn")
REFUSED = MetricSpec(name="data/authored_refused", better="down", unit="authored prompts that were refused")
MAX_HELD_OUT_ROWS = 20_000
"""Maximum number of rows to compare per evaluation set. More rows would delay the first step."""


class AuthoredPromptsReader(StepHook):
    """Adds authored prompts to the source, if the run has an author, a folder, and a way to score such prompts."""

    def __init__(self, trainer: Trainer, source: PromptSource, committee: Committee | None) -> None:
        self._trainer, self._source, self._committee = trainer, source, committee
        self._authored = source.authored
        self._ranks = Ranks()
        self._settings: AuthorSettings | None = None
        self._folder = Path(os.environ.get("OVEN_RUN_DIR") or os.devnull)  # without a run, nothing exists below it
        self._logged_messages: set[str] = set()
        if committee is not None:
            committee.reference_columns = source.reference_columns

    def begin(self, ranks: Ranks) -> None:
        """Prepare the comparison. Every rank uses the same data, so that all accept the same prompts."""
        self._ranks = ranks
        settings = ranks.broadcast(author_settings(self._folder) if ranks.leader else None)
        self._settings = settings if settings is not None and self._can_be_scored() else None
        if self._settings is None:
            return
        held_out = [*self._source.held_out, *_evaluation_prompts(self._trainer)]
        self._admission = Admission([text_of(prompt) for prompt in self._source.data_prompts()], held_out)
        if not self._admission.held_out_count:
            self._warn_once(
                "no held-out prompts are known; pass PromptSource(held_out=…) to protect them from quotation"
            )
        if ranks.leader:
            self._write_topics(self._settings.examples)

    def register_knob(self, actuators: Actuators) -> None:
        if self._settings is not None:
            actuators.scalar(
                SHARE,
                lambda: self._authored.share,
                lambda share: self._authored.set_share(share, self._source.next_chunk),
                low=0.0,
                high=self._settings.share,
                unit="share of a topic's draws",
                moves_own_metric=True,
            )

    def metric_specs(self) -> tuple[MetricSpec, ...]:
        return (STORED, REFUSED) if self._settings is not None else ()

    def end_step(self, step: StepEnd) -> None:
        if self._settings is not None:
            refused_count = self._authored.refusals.total()
            step.metrics |= {STORED.name: float(len(self._authored.pool)), REFUSED.name: float(refused_count)}

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        """Accept prompts that the author has written since the last step."""
        if self._settings is not None:
            batch = self._ranks.broadcast(self._read() if self._ranks.leader else None)
            if batch is not None:
                self._accept(batch, self._settings.total)

    def _read(self) -> Batch | None:
        """Return the new prompts, or None. Never raises, because a problem of the author must not end training."""
        try:
            batch = read_prompts(self._folder, self._authored.offset)
        except FileNotFoundError:
            return None
        except (ConfigError, OSError, ValueError) as error:
            self._warn_once(f"cannot read the author's prompts ({reason(error)}); training continues without them")
            return None
        return batch if batch.offset != self._authored.offset else None

    def _accept(self, batch: Batch, max_accepted: int) -> None:
        authored = self._authored
        refusals_before = authored.refusals.copy()
        authored.offset = batch.offset
        authored.refusals.update({"malformed": batch.malformed, "too_long": batch.too_long})
        groups: dict[tuple[str, str, str], list[str]] = {}
        for entry in batch.prompts:
            if refusal := self._refusal(entry, max_accepted):
                authored.refusals[refusal] += 1
            else:
                authored.accepted_keys.add(key_of(entry.prompt))
                origin = f"{entry.by} by {entry.model or 'no model'} at tick {entry.tick}"
                groups.setdefault((entry.topic, entry.by, origin), []).append(entry.prompt)
        for (topic, by, origin), prompts in groups.items():
            self._source.add_authored(prompts, by=by, why=f"written for a topic that lags: {origin}", topic=topic)
        if new_refusals := authored.refusals - refusals_before:
            counts = ", ".join(f"{kind} {count}" for kind, count in sorted(new_refusals.items()))
            log.warning("refused %d authored prompts: %s", new_refusals.total(), counts)

    def _refusal(self, entry: AuthoredPrompt, max_accepted: int) -> str:
        """Return the reason for refusing the prompt, or an empty string."""
        accepted_keys = self._authored.accepted_keys
        if len(accepted_keys) >= max_accepted:
            return "capped"
        if entry.topic not in self._source.names:
            return "unknown_topic"
        return self._admission.refusal(entry.prompt, accepted_keys)

    def _can_be_scored(self) -> bool:
        """Whether prompts can be scored without the data's other columns. A plain reward function would get None for
        these columns, which may end training."""
        committee, missing_columns = self._committee, ", ".join(sorted(self._source.reference_columns))
        if not missing_columns or (committee is not None and committee.remote is not None):
            return True
        remedy = "use oven.Committee as the reward" if committee is None else "add a remote judge to the committee"
        self._warn_once(
            f"{SHARE} is not announced, because authored prompts have no {missing_columns} and cannot be scored "
            f"without them; {remedy}"
        )
        return False

    def _write_topics(self, example_count: int) -> None:
        """Write the topics for the author, with examples from the training data."""
        topics = []
        for name in self._source.names:
            prompts = self._source.data_prompts(name)
            example_texts = tuple(text_of(prompt)[:MAX_CHARACTERS] for prompt in prompts[:example_count])
            topics.append(Topic(name=name[:200], prompts=len(prompts), examples=example_texts))
        try:
            write_topics(self._folder, topics)
        except (OSError, ValidationError) as error:
            self._warn_once(f"cannot write the topics for the author: {reason(error)}")

    def _warn_once(self, message: str) -> None:
        if message not in self._logged_messages:
            self._logged_messages.add(message)
            log.warning("%s", message)


def author_settings(folder: Path) -> AuthorSettings | None:
    """Return the author's settings in the run's folder, or None without an author. Raises ConfigError if invalid."""
    config = folder / "config.json"
    if not config.is_file():
        return None
    try:
        settings = AuthorSettings.model_validate(json.loads(config.read_text()).get("author", {}))
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"invalid author settings in {config}, which `up` writes: {reason(error)}") from None
    return settings if settings.llm is not None else None


def _evaluation_prompts(trainer: Trainer) -> Iterator[str]:
    datasets: Any = trainer.eval_dataset
    for dataset in datasets.values() if isinstance(datasets, Mapping) else [datasets]:
        if "prompt" in (getattr(dataset, "column_names", None) or ()) and hasattr(dataset, "select"):
            row_count = min(len(dataset), MAX_HELD_OUT_ROWS)
            yield from map(text_of, dataset.select(range(row_count))["prompt"])
