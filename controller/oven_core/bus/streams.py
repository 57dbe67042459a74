"""The streams of a run: the log, and what agents may write, which the log sources; and beside them the newest sampled
completions.

Two for the log, so that an agent never publishes to the log itself: limits on the votes stream (rate, size, age) keep
a flooding agent from delaying the others, and the log's one sequence still orders everything.

Completions have a stream and no ring in a process of ours: the server bounds it by bytes, count and age itself, and it
is there whichever process dies. It takes plain messages and confirms none, so that who writes waits for nothing; the
oldest go first. No consumer of it is ever made: the history service reads it message by message.
"""

from __future__ import annotations

import contextlib

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, StreamSource
from nats.js.errors import APIError, NotFoundError

from oven_core.errors import BusError, NameInUseError, reason
from oven_core.protocol.names import Subjects, completions_stream, log_stream, votes_stream
from oven_core.protocol.subjects import log_subjects, votes_subjects

VOTE_BYTES = 16 * 1024
LOG_BYTES = 256 * 1024
VOTES_KEPT = 50
VOTES_AGE_S = 1.0
COMPLETIONS_BYTES = 32 << 20
"""Of a run's sampled completions on the server's disk; the oldest go."""
COMPLETIONS_KEPT = 2000
COMPLETIONS_AGE_S = 14 * 86400.0
"""They hold text of the data: they go even if the run is kept."""
COMPLETION_BYTES = 256 * 1024
"""Of one sampled group; the learner cuts texts until it fits."""
DUPLICATES_S = 120.0
"""How long a message id is remembered. A stream with sources has no window unless told to (server 2.15.1)."""


def configs(run: str, replicas: int = 1, duplicates_s: float = DUPLICATES_S) -> tuple[StreamConfig, StreamConfig]:
    """(votes, log). The log's message limit must exceed the votes': one oversized vote would stall sourcing for all.
    `replicas`: servers of a cluster that keep each, 1, 3 or 5."""
    votes = StreamConfig(
        name=votes_stream(run),
        subjects=votes_subjects(run),
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        max_msgs_per_subject=VOTES_KEPT,
        max_age=VOTES_AGE_S,
        max_msg_size=VOTE_BYTES,
        no_ack=True,
        num_replicas=replicas,
    )
    log = StreamConfig(
        name=log_stream(run),
        subjects=log_subjects(run),
        sources=[StreamSource(name=votes_stream(run))],
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_msg_size=LOG_BYTES,
        duplicate_window=duplicates_s,
        allow_atomic=True,
        deny_delete=True,
        deny_purge=True,
        num_replicas=replicas,
    )
    return votes, log


def completions_config(run: str, replicas: int = 1) -> StreamConfig:
    """The stream of sampled completions."""
    return StreamConfig(
        name=completions_stream(run),
        subjects=[Subjects(run).completions],
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_bytes=COMPLETIONS_BYTES,
        max_msgs=COMPLETIONS_KEPT,
        max_age=COMPLETIONS_AGE_S,
        max_msg_size=COMPLETION_BYTES,
        no_ack=True,
        num_replicas=replicas,
    )


async def keep_completions(js: JetStreamContext, run: str, replicas: int = 1) -> str:
    """Have a stream of sampled completions, unless there is one. Why there is none, in words; empty: there is."""
    try:
        await js.add_stream(completions_config(run, replicas))
    except (APIError, TimeoutError, NatsError) as error:
        return f"{getattr(error, 'description', None) or reason(error)}"
    return ""


async def exists(js: JetStreamContext, run: str) -> bool:
    try:
        await js.stream_info(log_stream(run))
    except NotFoundError:
        return False
    return True


async def create(js: JetStreamContext, run: str, replicas: int = 1, *, duplicates_s: float = DUPLICATES_S) -> None:
    """Raises NameInUseError if the run has its streams already."""
    if await exists(js, run):
        raise NameInUseError(f"run {run!r} exists on this server; choose another name, or continue it with --resume")
    try:
        for config in configs(run, replicas, duplicates_s):
            await js.add_stream(config)
    except APIError as error:
        raise BusError(
            f"the server refused the streams of run {run!r}: {error.description} ({error.err_code})"
        ) from error


async def delete(js: JetStreamContext, run: str) -> None:
    """All, as they were made; one that is not there is no error."""
    for name in (log_stream(run), votes_stream(run), completions_stream(run)):
        with contextlib.suppress(NotFoundError, TimeoutError):
            await js.delete_stream(name)
