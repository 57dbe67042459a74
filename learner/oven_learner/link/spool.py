"""The learner's side of its run's spool: taken before the run is opened, written when the log did not take the rest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from oven_core.bus.log import Entry
from oven_core.errors import OvenError
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer
from oven_runs.home.spool import Spool, SpooledMessage

log = logging.getLogger("oven.learner")

WAIT_S = 3.0
"""For the link of the learner before this one to let go of it."""


def taken(folder: str, run: str) -> Spool | None:
    """None without a folder, and where none can be had, which is said: training does not depend on it. Raises
    ConfigError for one of another run's."""
    if not folder:
        return None
    try:
        spool = Spool.take(Path(folder), run, create=True, wait_s=WAIT_S)
    except OSError as error:
        log.warning("no spool in %s (%s): what the log does not take at the end will be lost", folder, error.strerror)
        return None
    if spool is None:
        log.warning("another learner holds the spool in %s: what the log does not take at the end will be lost", folder)
    return spool


def begin(spool: Spool) -> None:
    """What it held is in the log."""
    try:
        if spool.content.lost:
            log.error("%s was cut: %d messages that it held are lost", spool.path, spool.content.lost)
        spool.begin()
    except OSError as error:
        log.warning("%s cannot be written (%s)", spool.path, error.strerror)


def let_go(spool: Spool | None) -> None:
    """The run was not opened: what it held stays, and an empty one goes."""
    if spool is not None:
        if not spool.content.messages:
            spool.done()
        spool.close()


def keep(spool: Spool | None, letters: Sequence[Entry], credentials: Credentials | None) -> int:
    """Write what the log did not take, signed; how many messages. With none of them the spool goes."""
    if spool is None:
        return 0
    try:
        if not letters:
            spool.done()
            return 0
        signer = Signer(credentials) if credentials is not None else None
        kept = [_kept(letter, signer) for letter in letters]
        kept.sort(key=lambda one: one.subject.endswith(".observation"))  # if the disk is full, those are cut
        written = spool.keep(kept)
        lost = len(kept) - written
        log.error(
            "the log did not take %d messages: %d wait in %s, and go into it when the run is next read or resumed%s",
            len(kept), written, spool.path, f"; {lost} are lost, as the disk takes no more" if lost else "",
        )  # fmt: skip
        return written
    except (OSError, OvenError) as error:
        log.error("the log did not take %d messages, and %s cannot be written: %s", len(letters), spool.path, error)
        return 0
    finally:
        spool.close()


def _kept(letter: Entry, signer: Signer | None) -> SpooledMessage:
    signature = signer.sign(letter.subject, letter.message_id, letter.data) if signer is not None else ""
    return SpooledMessage(letter.subject, letter.data, letter.message_id, signature)
