"""Kept diagnoses done again: the same programs over the same log, with the models' kept answers and no call."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from oven_core.protocol.events import Event
from oven_llm.providers.failures import ModelFailure
from oven_llm.supervisor.diagnosis.diagnosing import Found, diagnose
from oven_llm.supervisor.diagnosis.log_context import context_of
from oven_llm.supervisor.diagnosis.transcripts import Kept
from oven_llm.supervisor.log import FILES, events
from oven_llm.supervisor.models import LMResponse, Messages, ModelHandler


class Silent(ModelHandler):
    """A model that is not asked: what the kept conversation does not answer fails."""

    def __init__(self, model: str) -> None:
        self.model = model

    def chat(self, messages: Messages) -> LMResponse:
        raise ModelFailure("not_configured", "the kept conversation has no answer to this, and no call is made")


def recalled(kept: Kept, log: Sequence[Event], knobs: Sequence[str], config: dict[str, object]) -> Found:
    """`log`: the run's, judged; the context is made of what it held then."""
    with tempfile.TemporaryDirectory(prefix="oven-recall-") as scratch:
        place = Path(scratch)
        for name in FILES:
            if (kept.folder / name).is_file():
                shutil.copyfile(kept.folder / name, place / name)
        supervisor, worker = (Silent(_model(kept.folder / f"{role}.jsonl")) for role in ("supervisor", "worker"))
        return asyncio.run(
            diagnose(
                context_of(log, seq=kept.question.seq),
                kept.question.seen,
                supervisor,
                worker,
                knobs=knobs,
                log_dir=place,
                resume=True,
                config=config,
            )
        )


def _model(log: Path) -> str:
    """As the kept calls name it; empty where there are none. Raises ConfigError for a log that cannot be read."""
    first = next(events(log), None) if log.is_file() else None
    return "" if first is None else str(first.get("model", ""))
