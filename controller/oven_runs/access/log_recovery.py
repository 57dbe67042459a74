"""Recovery of a run's whole log: from its store, from log.jsonl, and from what its learner kept.

Appending a learner's last messages to a log that no mesh reads any more would leave decisions due that no one made, and
a replay would miss them. So what the mesh would have said is computed and appended too, under the mesh's own key.
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
from oven_runs.access.log_sources import connected, exported
from oven_runs.home.log_mirror import Mirror
from oven_runs.home.run_folder import RunFolder
from oven_runs.home.spool import Spool, append, taken
from oven_runs.server.embedded import EmbeddedServer

Tell = Callable[[str], object]


async def recover(folder: RunFolder, tell: Tell) -> None:
    """Make log.jsonl the whole log of a run that is down. `tell` hears what is wrong and what was done about it, a
    sentence each. Raises ConfigError where there is no log, ProcessError where the disk takes none."""
    if folder.exported():
        return
    try:
        if not folder.info().embedded:
            await _from_remote_server(folder, tell)
            return
        with folder.hold(reading=True):
            if not (folder.exported() or await _from_store(folder, tell)):  # another reader may have been quicker
                recover_without_store(folder, tell)
    except OSError as error:
        why = f"{error.strerror or error} in {folder.path}"
        if not folder.export.exists():
            raise ProcessError(f"the log of run {folder.run!r} cannot be exported ({why}): make room there") from error
        tell(f"log.jsonl cannot be finished ({why}): it is read as far as it goes; make room there and read it again")


async def _from_remote_server(folder: RunFolder, tell: Tell) -> None:
    try:
        async with connected(folder, "admin") as bus:
            await finish(bus, folder, tell)
    except BusError as error:
        if not folder.export.exists():
            raise
        tell(f"log.jsonl is read as far as it goes, for the run's server does not answer ({error})")


async def _from_store(folder: RunFolder, tell: Tell) -> bool:
    """Whether there is a store that holds the log."""
    if not folder.stored():
        if not folder.export.exists():
            raise ConfigError(f"run {folder.run!r} has no log: it ended before its server started")
        return False
    admin = Credentials.load(folder.add_user("admin", "admin"))
    server = await EmbeddedServer.start(folder.server, folder.logs / "nats-server.log")
    try:
        async with Bus.connect(server.url, admin) as bus:
            if not await streams.exists(bus.jetstream, folder.run):
                if folder.export.exists():
                    return False
                raise ConfigError(f"run {folder.run!r} has no log in its store {folder.server.folder / 'store'}")
            await finish(bus, folder, tell)
    except BusError as error:
        raise ConfigError(f"run {folder.run!r} has no log in its store ({error})") from error
    finally:
        await server.stop()
    return True


async def finish(bus: Bus, folder: RunFolder, tell: Tell, *, late: bool = False) -> None:
    """Log what the run's spool holds, if there is one, and write log.jsonl to the log's end. `late`: a spool's messages
    came so late already that the mesh may owe something. Raises BusError and OSError; what was done by then is not done
    again."""
    mark_mirrored(folder, mirrored=True)  # until all of it is there
    with contextlib.closing(Mirror(folder.export)) as mirror, taken(folder.path, folder.run) as spool:
        if spool is not None and spool.left.messages:
            await append(bus, folder.run, spool.left.messages)
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
    """Raises OSError."""
    if (info := folder.info()).mirrored != mirrored:
        folder.write_info(info.model_copy(update={"mirrored": mirrored}))


def report_spool(spool: Spool, tell: Tell) -> None:
    """What came out of it, and what was lost."""
    left = spool.left
    if left.messages:
        tell(f"{spool.path.name}: {left.words()} are in the log now; its server was away when the learner ended")
    elif left.unknown:
        tell(f"the log may lack the learner's last messages: it was killed before it could keep them in {spool.path}")
    if left.lost:
        tell(
            f"{spool.path} was cut: {left.lost} messages that it held are lost; "
            f"`oven-controller replay {_run(spool)} --verify` says which"
        )


def _run(spool: Spool) -> str:
    return spool.path.parent.name


def report_differences(folder: RunFolder, mirror: Mirror, tell: Tell) -> None:
    """Where log.jsonl and the store part."""
    if mirror.aside is not None:
        tell(
            f"event {mirror.differs} of log.jsonl, as it was written while the run continued, is not the store's: the "
            f"store holds, and the other file is kept as {mirror.aside}; compare the two, and remove it when you have"
        )
    if mirror.beyond:
        tell(
            f"the store of run {folder.run!r} ends at event {mirror.seq}, and log.jsonl has {mirror.beyond} more, "
            "which are kept and read: the store was cut or brought back from a copy; look at nats-server.log"
        )


async def fill(bus: Bus, run: str, mirror: Mirror) -> None:
    """What the log has behind the last event that the mirror took."""
    head = await bus.head(run)
    if head > mirror.seq:
        async for event in bus.read(run, after=mirror.seq, until=head):
            mirror.take(event)


def recover_without_store(folder: RunFolder, tell: Tell) -> list[Event]:
    """The store is gone: log.jsonl is the log, and takes what the spool holds. Returns what was added. Raises OSError
    when the disk does not take it, ConfigError for a log.jsonl that is damaged."""
    with contextlib.closing(Mirror(folder.export)) as mirror:
        mirror.finish()  # a last line that was cut goes
    with taken(folder.path, folder.run) as spool:
        added = _appended(folder, spool) if spool is not None and spool.left.messages else []
        seqs = [event.seq for event in exported(folder)]
        tell(
            f"the store of run {folder.run!r} is gone: what is left of its log is log.jsonl, {len(seqs)} events as "
            "they were written while the run continued"
        )
        if spool is not None:
            report_spool(spool, tell)
            spool.done()
    return added


def _appended(folder: RunFolder, spool: Spool) -> list[Event]:
    lacking = {message.message_id for message in spool.left.messages}
    seq = 0
    for event in exported(folder):
        seq = event.seq
        lacking.discard(event.message_id)
    added: list[Event] = []

    def put(subject: str, data: bytes, message_id: str, signature: str) -> None:
        number = seq + len(added) + 1
        now = datetime.now(UTC)
        added.append(Event.read(number, subject, data, now, message_id=message_id, signature=signature))

    for message in spool.left.messages:
        if message.message_id in lacking:
            put(message.subject, message.data, message.message_id, message.signature)
    key = _mesh_key(folder)
    signer = Signer(key) if key is not None else None
    whole = (event for part in (exported(folder), added) for event in part)
    outputs, keys = _owed(whole, folder)
    if _believed(signer, keys):
        for output, _over in outputs:
            signed = signer.sign(output.subject, "", output.data) if keys and signer is not None else ""
            put(output.subject, output.data, "", signed)
    with folder.export.open("ab") as out:
        out.writelines(event.line().encode() + b"\n" for event in added)
        out.flush()
        os.fsync(out.fileno())
    return added


async def _publish_owed(bus: Bus, folder: RunFolder) -> None:
    outputs, keys = _owed(exported(folder), folder)
    key, ca, url = _mesh_key(folder), folder.info().tls_ca, bus.client.connected_url
    if outputs and url is not None and _believed(Signer(key) if key is not None else None, keys):
        async with Bus.connect(url.geturl(), key, name=MESH, trust=tls.trusting(ca) if ca else None) as mesh:
            for output, over in outputs:
                with contextlib.suppress(AlreadyLoggedError):
                    await mesh.append(output.subject, output.data, once=True, over=over)


def _owed(events: Iterable[Event], folder: RunFolder) -> tuple[list[tuple[Output, int]], dict[str, str]]:
    """What the mesh has yet to say at the end of this log, each with the sequence of what was forged on its subject;
    and the keys of those who sign. Nothing where another version decided."""
    mesh, keyring, forged, version = Mesh(folder.run), Keyring(folder.pin()), dict[str, int](), ""
    for logged in events:
        event = keyring.verify(logged)
        mesh.step(event)
        if isinstance(event.body, Malformed) and kind(event.subject) in OUTPUTS:
            forged[event.subject] = event.seq
        elif isinstance(event.body, RunStarted):
            version = event.body.mesh_code
    if mesh.divergence or version not in ("", mesh_code_hash()):
        return [], {}
    return [(output, forged.get(output.subject, 0)) for output in mesh.pending.values()], dict(keyring.keys or {})


def _believed(signer: Signer | None, keys: dict[str, str]) -> bool:
    return not keys or (signer is not None and keys.get(MESH) == signer.public)


def _mesh_key(folder: RunFolder) -> Credentials | None:
    """None where there is none yet: a new one would not be believed."""
    path: Path | None = folder.server.creds / f"{MESH}.nk"
    if not folder.info().embedded:
        path = folder.credentials("mesh")
    return Credentials.load(path) if path is not None and path.is_file() else None
