"""Entry point of the notifier process. Its settings, key and state are in the run's folder."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from pydantic import ValidationError

from oven_controller.notify.notifier import run_notifier
from oven_controller.notify.recipients import resolve_recipients, tls_warnings
from oven_core.errors import ConfigError, reason
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import RunFolder
from oven_runs.settings.notifications import NotifySettings

log = logging.getLogger("oven.notify")


def main(_: list[str]) -> int:
    """Send messages about the run in $OVEN_RUN_DIR to the recipients in its settings. Raises ConfigError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    folder = RunFolder(Path(os.environ["OVEN_RUN_DIR"]))
    settings = read_settings(folder)
    recipients = resolve_recipients(settings, os.environ, folder.path)
    for warning in tls_warnings(recipients):
        log.warning("%s", warning)
    asyncio.run(run_notifier(LocalRun(folder), settings, recipients, folder))
    return 0


def read_settings(folder: RunFolder) -> NotifySettings:
    """Return the `notify` settings of the run's last start. Raises ConfigError."""
    try:
        return NotifySettings.model_validate(folder.earlier_settings().get("notify", {}))
    except ValidationError as error:
        raise ConfigError(f"the `notify` settings in {folder.config} are invalid: {reason(error)}") from None
