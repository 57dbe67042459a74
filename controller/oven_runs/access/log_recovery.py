"""Recover the complete log of a stopped run from its store, its log.jsonl and the learner's spool.

If a learner's last messages are appended after the mesh has stopped, some decisions may be due that the mesh never
made. A replay would report them as missing. So the recovery also computes the mesh's missing outputs, signs them with
the mesh's key and appends them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.bus.log import AlreadyLoggedError
from oven_core.errors import BusError, ConfigError, ProcessError
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.mesh.outputs import OUTPUTS, Output
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted
from oven_core.protocol.names import kind
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_core.security.signing import MESH, Keyring, Signer
from oven_runs.access.log_sources import connected, exported, open_store
from oven_runs.home.log_mirror import Mirror
from oven_runs.home.run_folder import RunFolder
from oven_runs.home.spool import Spool, append, locked_spool

Tell = Callable[[str], object]


async def recover(folder: RunFolder, tell: Tell) -> None:
    """Make log.jsonl the complete log of a run that is down.

    `tell` receives a sentence about each problem and its solution. Raises ConfigError if there is no log, ProcessError
    if the disk is full.
    """
    if folder.exported():
        return
    try:
        if not folder.info().embedded:
            await _recover_from_server(folder, tell)
            return
        with folder.hold(reading=True):
            if not (folder.exported() or await _recover_from_store(folder, tell)):  # another reader may have done it
                recover_without_store(folder, tell)
    except OSError as error:
        problem = f"{error.strerror or error} in {folder.path}"
        if not folder.export.exists():
            raise ProcessError(
                f"the log of run {folder.run!r} cannot be exported ({problem}): free some disk space"
            ) from error
        tell(f"log.jsonl is incomplete ({problem}): only what it has is read; free some disk space and read it again")


async def _recover_from_server(folder: RunFolder, tell: Tell) -> None:
    try:
        async with connected(folder, "admin") as bus:
            await finish(bus, folder, tell)
    except BusError as error:
        if not folder.export.exists():
            raise
        tell(f"only what log.jsonl has is read, because the run's server does not answer ({error})")


async def _recover_from_store(folder: RunFolder, tell: Tell) -> bool:
    """Returns False if no store holds the log."""
    if not folder.stored():
        if not folder.export.exists():
            raise ConfigError(f"run {folder.run!r} has no log: it ended before its server started")
        return False
    try:
        async with open_store(folder) as bus:
            if not await streams.exists(bus.jetstream, folder.run):
                if folder.export.exists():
                    return False
                raise ConfigError(f"run {folder.run!r} has no log in its store {folder.server.folder / 'store'}")
            await finish(bus, folder, tell)
    except BusError as error:
        raise ConfigError(f"run {folder.run!r} has no log in its store ({error})") from error
    return True


async def finish(bus: Bus, folder: RunFolder, tell: Tell, *, late: bool = False) -> None:
    """Append the messages in the run's spool, if it has one, and complete log.jsonl.

    `late`: spooled messages were appended before, so the mesh's answers may be missing. Raises BusError and OSError. It
    can be repeated after an error.
    """
    mark_mirrored(folder, mirrored=True)  # until everything is there
    with contextlib.closing(Mirror(folder.export)) as mirror, locked_spool(folder.path, folder.run) as spool:
        if spool is not None and spool.content.messages:
            await append(bus, folder.run, spool.content.messages)
            late = True
        await fill(bus, folder.run, mirror)
        if late:
            mirror.finish()
            await _publish_owed(bus, folder)
            await fill(bus, folder.run, mirror)
        mirror.finish()
        report_differences(folder, mirror, tell)
        mark_mirrored(folder, mirrored=False)
        if spool is not None:
            report_spool(spool, tell)
            spool.done()


def mark_mirrored(folder: RunFolder, *, mirrored: bool) -> None:
    """Set the mark in run.json that log.jsonl may be incomplete. Raises OSError."""
    if (info := folder.info()).mirrored != mirrored:
        folder.write_info(info.model_copy(update={"mirrored": mirrored}))


def report_spool(spool: Spool, tell: Tell) -> None:
    """Report which messages were in the spool and which were lost."""
    content = spool.content
    if content.messages:
        tell(f"{spool.path.name}: {content.summary()} are in the log now; the server was away when the learner ended")
    elif content.unknown:
        tell(f"the log may lack the learner's last messages: it was killed before it could save them in {spool.path}")
    if content.lost:
        tell(
            f"{spool.path} was cut: {content.lost} of its messages are lost; "
            f"`oven-controller replay {spool.path.parent.name} --verify` says which"
        )


def report_differences(folder: RunFolder, mirror: Mirror, tell: Tell) -> None:
    """Report where log.jsonl and the store disagree."""
    if mirror.aside is not None:
        tell(
            f"event {mirror.differs} of log.jsonl, which was written during the run, differs from the store; the store "
            f"is used, and the old file is now {mirror.aside}; compare the two and remove it"
        )
    if mirror.beyond:
        tell(
            f"the store of run {folder.run!r} ends at event {mirror.seq}, and log.jsonl has {mirror.beyond} more, "
            "which are kept: the store was cut or restored from a backup; see nats-server.log"
        )


async def fill(bus: Bus, run: str, mirror: Mirror) -> None:
    """Pass all events after the mirror's last one to it."""
    head = await bus.head(run)
    if head > mirror.seq:
        async for event in bus.read(run, after=mirror.seq, until=head):
            mirror.take(event)


def recover_without_store(folder: RunFolder, tell: Tell) -> list[Event]:
    """Add the spool's messages to log.jsonl, which is the log if the store is gone. Returns the added events.

    Raises OSError if the disk is full, ConfigError if log.jsonl is damaged.
    """
    with contextlib.closing(Mirror(folder.export)) as mirror:
        mirror.finish()  # removes an incomplete last line
    with locked_spool(folder.path, folder.run) as spool:
        added = _append_to_file(folder, spool) if spool is not None and spool.content.messages else []
        seqs = [event.seq for event in exported(folder)]
        tell(
            f"the store of run {folder.run!r} is gone: its log is log.jsonl, with {len(seqs)} events that were written "
            "during the run"
        )
        if spool is not None:
            report_spool(spool, tell)
            spool.done()
    return added


def _append_to_file(folder: RunFolder, spool: Spool) -> list[Event]:
    missing_ids = {message.message_id for message in spool.content.messages}
    seq = 0
    for event in exported(folder):
        seq = event.seq
        missing_ids.discard(event.message_id)
    added: list[Event] = []

    def add(subject: str, data: bytes, message_id: str, signature: str) -> None:
        number = seq + len(added) + 1
        now = datetime.now(UTC)
        added.append(Event.read(number, subject, data, now, message_id=message_id, signature=signature))

    for message in spool.content.messages:
        if message.message_id in missing_ids:
            add(message.subject, message.data, message.message_id, message.signature)
    key = _mesh_key(folder)
    signer = Signer(key) if key is not None else None
    whole_log = (event for part in (exported(folder), added) for event in part)
    outputs, keys = _owed(whole_log, folder)
    if _is_mesh(signer, keys):
        for output, _over in outputs:
            signature = signer.sign(output.subject, "", output.data) if keys and signer is not None else ""
            add(output.subject, output.data, "", signature)
    with folder.export.open("ab") as out:
        out.writelines(event.line().encode() + b"\n" for event in added)
        out.flush()
        os.fsync(out.fileno())
    return added


async def _publish_owed(bus: Bus, folder: RunFolder) -> None:
    outputs, keys = _owed(exported(folder), folder)
    key, ca, url = _mesh_key(folder), folder.info().tls_ca, bus.client.connected_url
    if outputs and url is not None and _is_mesh(Signer(key) if key is not None else None, keys):
        async with Bus.connect(url.geturl(), key, name=MESH, trust=tls.trusting(ca) if ca else None) as mesh:
            for output, over in outputs:
                with contextlib.suppress(AlreadyLoggedError):
                    await mesh.append(output.subject, output.data, once=True, over=over)


def _owed(events: Iterable[Event], folder: RunFolder) -> tuple[list[tuple[Output, int]], dict[str, str]]:
    """Return the outputs that the mesh has not published at the end of this log, and the signers' public keys.

    Each output comes with the sequence of a forged event on its subject, or 0. If another version of the mesh decided
    in this run, there are none.
    """
    mesh, keyring, forged, version = Mesh(folder.run), Keyring(folder.pin()), dict[str, int](), ""
    for raw in events:
        event = keyring.verify(raw)
        mesh.step(event)
        if isinstance(event.body, Malformed) and kind(event.subject) in OUTPUTS:
            forged[event.subject] = event.seq
        elif isinstance(event.body, RunStarted):
            version = event.body.mesh_code
    if mesh.divergence or version not in ("", mesh_code_hash()):
        return [], {}
    return [(output, forged.get(output.subject, 0)) for output in mesh.pending.values()], dict(keyring.keys or {})


def _is_mesh(signer: Signer | None, keys: dict[str, str]) -> bool:
    """Whether readers of the run accept `signer`'s signature as the mesh's signature."""
    return not keys or (signer is not None and keys.get(MESH) == signer.public)


def _mesh_key(folder: RunFolder) -> Credentials | None:
    """Return the existing key, if any. A new one would not be accepted."""
    path: Path | None = folder.server.creds / f"{MESH}.nk"
    if not folder.info().embedded:
        path = folder.credentials("mesh")
    return Credentials.load(path) if path is not None and path.is_file() else None
