"""A notifier in the foreground, about a run that is up already; nothing of it is written down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from oven_controller.notify.notifier import Notifier
from oven_controller.notify.recipients import Recipient
from oven_core.cancellation import call_at_end
from oven_runs.access.run_access import RunAccess
from oven_runs.settings.notifications import NotifySettings


async def watched(access: RunAccess, settings: NotifySettings, recipients: Sequence[Recipient]) -> None:
    """Until the run is over, or the process is told to end. Raises RefusedError, ConfigError."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    stop = asyncio.Event()
    call_at_end(stop.set)
    await Notifier(access, settings, recipients, None).run(stop)
