"""Recover the complete log of a stopped run from its store, its log.jsonl and the learner's spool.

The learner's last messages may be appended after the mesh has stopped. In that case the mesh never made the decisions
that follow from them, and a replay would report those decisions as missing. So the recovery also computes the mesh's
missing outputs, signs them with the mesh's key and appends them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.bus.log_client import AlreadyLoggedError
from oven_core.errors import BusError, ConfigError, ProcessError
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.mesh.outputs import OUTPUT_KINDS, Output
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted
from oven_core.protocol.names import kind
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_core.security.signing import MESH, Keyring, Signer
from oven_runs.access.log_sources import connect, exported_events, open_store
from oven_runs.home.learner_spool import Spool, append_missing, locked_spool
from oven_runs.home.log_mirror import Mirror
from oven_runs.home.run_folder import RunFolder

Report = Callable[[str], object]
"""Receives a sentence for the user about each problem and its solution."""


async def recover(folder: RunFolder, report: Report) -> None:
    """Complete the log.jsonl of a run that is down. Raises ConfigError if there is no log, and ProcessError if the disk
    is full."""
    if folder.has_complete_log():
        return
    try:
        if not folder.info().embedded:
            await _recover_from_server(folder, report)
            return
        with folder.hold(reading=True):
            if folder.has_complete_log():  # another reader completed it in the meantime
                return
            if not await _recover_from_store(folder, report):
                recover_without_store(folder, report)
    except OSError as error:
        problem = f"{error.strerror or error} in {folder.path}"
        if not folder.export.exists():
            raise ProcessError(
                f"the log of run {folder.run!r} cannot be exported ({problem}): free some disk space"
            ) from error
        report(f"log.jsonl is incomplete ({problem}), and only part of the log is read; free disk space and try again")


async def _recover_from_server(folder: RunFolder, report: Report) -> None:
    try:
        async with connect(folder, "admin") as bus:
            await complete_log(bus, folder, report)
    except BusError as error:
        if not folder.export.exists():
            raise
        report(f"log.jsonl is read and may be incomplete, because the run's server does not answer ({error})")


async def _recover_from_store(folder: RunFolder, report: Report) -> bool:
    """Complete log.jsonl from the store. Return False if the log is not in a store."""
    if not folder.has_store():
        if not folder.export.exists():
            raise ConfigError(f"run {folder.run!r} has no log: it ended before its server started")
        return False
    try:
        async with open_store(folder) as bus:
            if not await streams.exists(bus.jetstream, folder.run):
                if folder.export.exists():
                    return False
                raise ConfigError(f"run {folder.run!r} has no log in its store {folder.server.folder / 'store'}")
            await complete_log(bus, folder, report)
    except BusError as error:
        raise ConfigError(f"run {folder.run!r} has no log in its store ({error})") from error
    return True


async def complete_log(bus: Bus, folder: RunFolder, report: Report, *, has_late_messages: bool = False) -> None:
    """Append the messages in the run's spool, if it has one, and complete log.jsonl. `has_late_messages` means that
    spooled messages were appended earlier, so outputs of the mesh may be missing. Raises BusError and OSError. The call
    can be repeated after an error."""
    mark_incomplete(folder, incomplete=True)
    with contextlib.closing(Mirror(folder.export)) as mirror, locked_spool(folder.path, folder.run) as spool:
        if spool is not None and spool.content.messages:
            await append_missing(bus, folder.run, spool.content.messages)
            has_late_messages = True
        await copy_new_events(bus, folder.run, mirror)
        if has_late_messages:
            mirror.finish()
            await _publish_missing_outputs(bus, folder)
            await copy_new_events(bus, folder.run, mirror)
        mirror.finish()
        report_differences(folder, mirror, report)
        mark_incomplete(folder, incomplete=False)
        if spool is not None:
            report_spool(spool, report)
            spool.remove()


def mark_incomplete(folder: RunFolder, *, incomplete: bool) -> None:
    """Record in run.json whether log.jsonl may be incomplete (`mirrored`). Raises OSError."""
    if (info := folder.info()).mirrored != incomplete:
        folder.write_info(replace(info, mirrored=incomplete))


def report_spool(spool: Spool, report: Report) -> None:
    """Report which messages were in the spool and which were lost."""
    content = spool.content
    if content.messages:
        report(
            f"{spool.path.name}: {content.summary()} are in the log now; the server was not reachable when the learner "
            "ended"
        )
    elif content.has_unknown_loss:
        report(f"the log may lack the learner's last messages: it was killed before it could save them in {spool.path}")
    if content.lost:
        report(
            f"{spool.path} was truncated: {content.lost} of its messages are lost; "
            f"`oven-controller replay {spool.path.parent.name} --verify` lists them"
        )


def report_differences(folder: RunFolder, mirror: Mirror, report: Report) -> None:
    """Report where log.jsonl and the store disagree."""
    if mirror.renamed_file is not None:
        report(
            f"event {mirror.first_different_seq} of log.jsonl, which was written during the run, differs from the "
            "store; the log is now read from the store, and the old file was renamed to "
            f"{mirror.renamed_file}; compare the two and remove it"
        )
    if mirror.extra_events:
        report(
            f"the store of run {folder.run!r} ends at event {mirror.seq}, but log.jsonl has {mirror.extra_events} "
            "more, which were kept: the store was truncated or restored from a backup; see nats-server.log"
        )


async def copy_new_events(bus: Bus, run: str, mirror: Mirror) -> None:
    """Copy all events after the mirror's last one to the mirror."""
    head = await bus.head(run)
    if head > mirror.seq:
        async for event in bus.read(run, after=mirror.seq, until=head):
            mirror.add(event)


def recover_without_store(folder: RunFolder, report: Report) -> list[Event]:
    """Add the spool's messages to log.jsonl, which is the only log if the store was deleted. Return the added events.
    Raises OSError if the disk is full, and ConfigError if log.jsonl is damaged."""
    with contextlib.closing(Mirror(folder.export)) as mirror:
        mirror.finish()  # removes an incomplete last line
    with locked_spool(folder.path, folder.run) as spool:
        new_events = _append_to_file(folder, spool) if spool is not None and spool.content.messages else []
        event_count = sum(1 for _ in exported_events(folder))
        report(
            f"the store of run {folder.run!r} is gone: its log is log.jsonl, with {event_count} events that were "
            "written during the run"
        )
        if spool is not None:
            report_spool(spool, report)
            spool.remove()
    return new_events


def _append_to_file(folder: RunFolder, spool: Spool) -> list[Event]:
    """Append the spool's messages and the mesh's missing outputs to log.jsonl. Return the added events."""
    missing_ids = {message.message_id for message in spool.content.messages}
    seq = 0
    for event in exported_events(folder):
        seq = event.seq
        missing_ids.discard(event.message_id)
    new_events: list[Event] = []

    def add(subject: str, data: bytes, message_id: str, signature: str) -> None:
        number = seq + len(new_events) + 1
        now = datetime.now(UTC)
        new_events.append(Event.read(number, subject, data, now, message_id=message_id, signature=signature))

    for message in spool.content.messages:
        if message.message_id in missing_ids:
            add(message.subject, message.data, message.message_id, message.signature)
    key = _mesh_key(folder)
    signer = Signer(key) if key is not None else None
    outputs, keys = _missing_outputs(itertools.chain(exported_events(folder), new_events), folder)
    if _signs_as_mesh(signer, keys):
        for output, _ in outputs:
            signature = signer.sign(output.subject, "", output.data) if keys and signer is not None else ""
            add(output.subject, output.data, "", signature)
    with folder.export.open("ab") as out:
        out.writelines(event.line().encode() + b"\n" for event in new_events)
        out.flush()
        os.fsync(out.fileno())
    return new_events


async def _publish_missing_outputs(bus: Bus, folder: RunFolder) -> None:
    outputs, keys = _missing_outputs(exported_events(folder), folder)
    key, ca, url = _mesh_key(folder), folder.info().tls_ca, bus.client.connected_url
    signer = Signer(key) if key is not None else None
    if outputs and url is not None and _signs_as_mesh(signer, keys):
        async with Bus.connect(url.geturl(), key, name=MESH, trust=tls.trust_file(ca) if ca else None) as mesh:
            for output, forged_seq in outputs:
                with contextlib.suppress(AlreadyLoggedError):
                    await mesh.append(output.subject, output.data, once=True, after_sequence=forged_seq)


def _missing_outputs(events: Iterable[Event], folder: RunFolder) -> tuple[list[tuple[Output, int]], dict[str, str]]:
    """Return the outputs that are missing at the end of this log, and the signers' public keys. Each output comes with
    the sequence number of a forged event on its subject, or 0. If another version of the mesh decided in this run,
    return no outputs."""
    mesh, keyring = Mesh(folder.run), Keyring(folder.pin())
    forged_seqs: dict[str, int] = {}  # by subject
    version = ""
    for raw in events:
        event = keyring.verify(raw)
        mesh.step(event)
        if isinstance(event.body, Malformed) and kind(event.subject) in OUTPUT_KINDS:
            forged_seqs[event.subject] = event.seq
        elif isinstance(event.body, RunStarted):
            version = event.body.mesh_code
    if mesh.divergence or version not in ("", mesh_code_hash()):
        return [], {}
    return [(output, forged_seqs.get(output.subject, 0)) for output in mesh.pending.values()], dict(keyring.keys or {})


def _signs_as_mesh(signer: Signer | None, keys: dict[str, str]) -> bool:
    """Whether readers of the run accept `signer`'s signature as the mesh's signature."""
    return not keys or (signer is not None and keys.get(MESH) == signer.public)


def _mesh_key(folder: RunFolder) -> Credentials | None:
    """Return the mesh's existing key, if there is one. Readers would not accept a new one."""
    path: Path | None = folder.server.creds / f"{MESH}.nk"
    if not folder.info().embedded:
        path = folder.credentials("mesh")
    return Credentials.load(path) if path is not None and path.is_file() else None
