"""Save recipients' addresses in the run's folder, in a file that only its owner can read. The run's settings refer to
them as `saved:1 https://hooks.example/…`, so config.json contains no secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_runs.settings.notifications import SAVED_PREFIX, NotifySettings, RecipientSettings, is_reference, safe_address

FOLDER: Final = "notify"
"""Name of the subfolder in the run's folder. It also contains the notifier's state."""
FILE_NAME: Final = "addresses.json"
_ADDRESSES: Final = TypeAdapter(dict[str, str])


def save(run_folder: Path, settings: NotifySettings) -> NotifySettings:
    """Write the addresses to the run's folder. Return the settings with references. Raises OSError and ConfigError."""
    if all(is_reference(entry.url) for entry in settings.to):
        return settings
    addresses = dict(read(run_folder))
    recipients = tuple(_save_address(entry, addresses) for entry in settings.to)
    folder = run_folder / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomic(folder / FILE_NAME, _ADDRESSES.dump_json(addresses, indent=1) + b"\n", private=True)
    return settings.model_copy(update={"to": recipients})


def _save_address(entry: RecipientSettings, addresses: dict[str, str]) -> RecipientSettings:
    """Add the address to `addresses` and return the settings with a reference to it."""
    if is_reference(entry.url):
        return entry
    number = next((number for number, url in addresses.items() if url == entry.url), str(len(addresses) + 1))
    addresses[number] = entry.url
    return entry.model_copy(update={"url": f"{SAVED_PREFIX}{number} {safe_address(entry.url)}"})


def read(run_folder: Path) -> Mapping[str, str]:
    """Return the saved addresses by number. Raises ConfigError if the file is damaged or others can read it."""
    path = run_folder / FOLDER / FILE_NAME
    try:
        mode = path.stat().st_mode & 0o777
        addresses = _ADDRESSES.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValidationError:
        raise ConfigError(
            f"{path} does not contain addresses; remove it, and pass the addresses again with --notify"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({reason(error)}); remove it, and pass the addresses again with --notify"
        ) from error
    if mode & 0o077:
        raise ConfigError(
            f"{path} has mode {mode:04o}: other users can read these addresses and post to them; "
            f"run `chmod 600 {path}`, and replace the addresses if somebody may have read them"
        )
    return addresses
