"""Addresses that were written out, kept in the run's folder in a file that its owner alone can read, like the keys.

The run's settings say `kept:1 https://hooks.example/…` in their place, so config.json can be shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_runs.settings.notifications import KEPT_PREFIX, NotifySettings, RecipientSettings, is_reference, shown

FOLDER: Final = "notify"
"""In the run's folder; the cursor is in it, too."""
NAME: Final = "addresses.json"


def keep(run: Path, settings: NotifySettings) -> NotifySettings:
    """The settings without addresses, which are in the file from now on. Raises OSError, ConfigError."""
    if all(is_reference(recipient.url) for recipient in settings.to):
        return settings
    held = dict(read(run))
    to = tuple(_kept(recipient, held) for recipient in settings.to)
    folder = run / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomic(folder / NAME, json.dumps(held, indent=1) + "\n", private=True)
    return settings.model_copy(update={"to": to})


def _kept(recipient: RecipientSettings, held: dict[str, str]) -> RecipientSettings:
    if is_reference(recipient.url):
        return recipient
    number = next((number for number, url in held.items() if url == recipient.url), str(len(held) + 1))
    held[number] = recipient.url
    return recipient.model_copy(update={"url": f"{KEPT_PREFIX}{number} {shown(recipient.url)}"})


def read(run: Path) -> Mapping[str, str]:
    """Number → address; empty where nothing was kept. Raises ConfigError for a file that is damaged, or that others may
    read."""
    path = run / FOLDER / NAME
    try:
        mode = path.stat().st_mode & 0o777
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({reason(error)}): remove it, and name the addresses again"
        ) from error
    if mode & 0o077:
        raise ConfigError(
            f"{path} has mode {mode:04o}: others may read these addresses, and post to them; `chmod 600 {path}`, and "
            "have new ones made if others had them"
        )
    if not isinstance(found, dict) or not all(isinstance(part, str) for pair in found.items() for part in pair):
        raise ConfigError(f"{path} holds no addresses: remove it, and name them again")
    return found
