"""Learning from the run that the service serves: its log is read now and then, and nothing is stored.

After a restart it reads the log from the beginning and knows what it knew. What it is told is judged by the run's keys,
as by every reader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.errors import BusError, OvenError
from oven_core.protocol.graph_requests import OutcomeReport
from oven_core.security.signing import Keyring
from oven_kg.service.endpoints import Answers
from oven_runs.access.log_sources import batches
from oven_runs.log.outcome_reports import OutcomeReports

log = logging.getLogger("oven.kg")

EVERY_S: Final = 5.0
"""How old a fact may be: an outcome is rare, and no one waits for what it taught."""


async def follow(bus: Bus, run: str, answers: Answers, pin: str | None = None, every_s: float = EVERY_S) -> None:
    """Until cancelled. `pin`: the learner's public key, if known. A mesh that does not answer is asked again."""
    reports, keyring, after, away = OutcomeReports(run), Keyring(pin), 0, False
    while True:
        try:
            async for batch in batches(bus, run, after):
                found = [reports.hear(keyring.verify(event)) for event in batch]
                _learn(answers, [report for report in found if report is not None])
                after = batch[-1].seq
            away = False
        except (BusError, ValidationError) as error:
            if not away:
                log.warning("no history, and so nothing new to learn: %s", error)
            away = True
        await asyncio.sleep(every_s)


def _learn(answers: Answers, reports: Sequence[OutcomeReport]) -> None:
    if not reports:
        return
    try:
        taken = answers.take(*reports)
        log.info("%d outcomes known, posteriors %s", taken.outcomes, taken.posteriors[:12])
    except OvenError as error:
        log.error("what was learnt is known here, and could not be kept: %s", error)
