"""Stores the learner's unsent messages on disk, in the run's spool, and opens the spool of an earlier learner."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from oven_core.errors import OvenError
from oven_core.protocol.events import Entry
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer
from oven_runs.home.learner_spool import Spool, SpooledMessage

log = logging.getLogger("oven.learner")

WAIT_S = 3.0
"""Maximum seconds to wait for the previous learner to release the spool."""


def open_spool(folder: str, run: str) -> Spool | None:
    """Open the run's spool. Return None without a folder, or with a warning if the spool cannot be opened. Raises
    ConfigError if it is the spool of another run."""
    if not folder:
        return None
    try:
        spool = Spool.lock(Path(folder), run, create=True, wait_s=WAIT_S)
    except OSError as error:
        log.warning(
            "cannot open a spool in %s (%s); any messages still unsent at the end will be lost", folder, error.strerror
        )
        return None
    if spool is None:
        log.warning(
            "another learner is using the spool in %s; any messages still unsent at the end will be lost", folder
        )
    return spool


def empty_spool(spool: Spool) -> None:
    """Empty the spool once its messages are in the log."""
    try:
        if spool.content.lost:
            log.error("%s was truncated; %d of its messages are lost", spool.path, spool.content.lost)
        spool.reset()
    except OSError as error:
        log.warning("cannot write %s (%s)", spool.path, error.strerror)


def release_spool(spool: Spool | None) -> None:
    """Release the spool of a run that could not be opened. Keep its messages, or remove it if it is empty."""
    if spool is not None:
        if not spool.content.messages:
            spool.remove()
        spool.close()


def write_unsent(spool: Spool | None, entries: Sequence[Entry], credentials: Credentials | None) -> int:
    """Sign the messages and write them to the spool, or remove it if there are none. Return the number written."""
    if spool is None:
        return 0
    try:
        if not entries:
            spool.remove()
            return 0
        signer = Signer(credentials) if credentials is not None else None
        messages = [_sign(entry, signer) for entry in entries]
        # Observations come last, because the last messages are lost if the disk is full.
        messages.sort(key=lambda message: message.subject.endswith(".observation"))
        written_count = spool.save(messages)
        lost_count = len(messages) - written_count
        log.error(
            "%d messages were not sent; %d of them are stored in %s until the run is next read or resumed%s",
            len(messages),
            written_count,
            spool.path,
            f"; {lost_count} are lost because the disk is full" if lost_count else "",
        )
        return written_count
    except (OSError, OvenError) as error:
        log.error("%d unsent messages are lost, because %s cannot be written: %s", len(entries), spool.path, error)
        return 0
    finally:
        spool.close()


def _sign(entry: Entry, signer: Signer | None) -> SpooledMessage:
    signature = signer.sign(entry.subject, entry.message_id, entry.data) if signer is not None else ""
    return SpooledMessage(entry.subject, entry.data, entry.message_id, signature)
