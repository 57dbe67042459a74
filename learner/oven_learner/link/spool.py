"""The learner's spool on disk. It is taken over before the run is opened, and written if messages are left."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from oven_core.bus.log_client import Entry
from oven_core.errors import OvenError
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer
from oven_runs.home.learner_spool import Spool, SpooledMessage

log = logging.getLogger("oven.learner")

WAIT_S = 3.0
"""Timeout for the previous learner's link to release the spool."""


def take(folder: str, run: str) -> Spool | None:
    """Return the run's spool. None without a folder, or with a warning if the spool cannot be opened. Raises
    ConfigError for the spool of another run."""
    if not folder:
        return None
    try:
        spool = Spool.lock(Path(folder), run, create=True, wait_s=WAIT_S)
    except OSError as error:
        log.warning("no spool in %s (%s): what the log does not take at the end will be lost", folder, error.strerror)
        return None
    if spool is None:
        log.warning("another learner holds the spool in %s: what the log does not take at the end will be lost", folder)
    return spool


def begin(spool: Spool) -> None:
    """Empty the spool, whose messages are in the log now."""
    try:
        if spool.content.lost:
            log.error("%s was cut: %d messages that it held are lost", spool.path, spool.content.lost)
        spool.reset()
    except OSError as error:
        log.warning("%s cannot be written (%s)", spool.path, error.strerror)


def release(spool: Spool | None) -> None:
    """Release the spool of a run that could not be opened. Its messages stay; an empty spool is removed."""
    if spool is not None:
        if not spool.content.messages:
            spool.remove()
        spool.close()


def keep(spool: Spool | None, entries: Sequence[Entry], credentials: Credentials | None) -> int:
    """Write the messages that the log did not take, signed. Return their number. Without any the spool is removed."""
    if spool is None:
        return 0
    try:
        if not entries:
            spool.remove()
            return 0
        signer = Signer(credentials) if credentials is not None else None
        messages = [_signed(entry, signer) for entry in entries]
        messages.sort(
            key=lambda message: message.subject.endswith(".observation")
        )  # if the disk is full, these are cut
        written = spool.save(messages)
        lost = len(messages) - written
        log.error(
            "the log did not take %d messages: %d wait in %s, and go into it when the run is next read or resumed%s",
            len(messages),
            written,
            spool.path,
            f"; {lost} are lost, as the disk takes no more" if lost else "",
        )
        return written
    except (OSError, OvenError) as error:
        log.error("the log did not take %d messages, and %s cannot be written: %s", len(entries), spool.path, error)
        return 0
    finally:
        spool.close()


def _signed(entry: Entry, signer: Signer | None) -> SpooledMessage:
    signature = signer.sign(entry.subject, entry.message_id, entry.data) if signer is not None else ""
    return SpooledMessage(entry.subject, entry.data, entry.message_id, signature)
