"""Create and delete the three JetStream streams of a run: the log, the agents' messages, and sampled completions.

Agents publish to a separate votes stream, from which the log copies their messages. Limits on the rate, size and age
of votes prevent a flooding agent from delaying the others. The log still has all messages in one order.

Completions are kept in a stream, so that they outlive the process that sampled them. The server limits the stream's
bytes, messages and age, and drops the oldest messages first. The server does not confirm completions, so writers never
wait. The stream has no consumer, because the history service reads it message by message.
"""

from __future__ import annotations

import contextlib

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StorageType, StreamConfig, StreamSource
from nats.js.errors import APIError, NotFoundError

from oven_core.errors import BusError, NameInUseError, reason
from oven_core.protocol.completion_messages import COMPLETION_BYTES
from oven_core.protocol.names import Subjects, completions_stream, log_stream, votes_stream
from oven_core.protocol.subjects import log_subjects, votes_subjects

VOTE_BYTES, LOG_BYTES = 16 * 1024, 256 * 1024
"""Maximum bytes of one message in the votes stream and in the log."""
MAX_VOTES, VOTES_AGE_S = 50, 1.0
"""Maximum number of messages per subject in the votes stream, and their maximum age in seconds."""
COMPLETIONS_BYTES = 32 << 20
"""Maximum bytes of a run's sampled completions on the server's disk."""
MAX_COMPLETIONS = 2000
"""Maximum number of stored groups of completions."""
COMPLETIONS_AGE_S = 14 * 86400.0
"""Maximum age of completions in seconds. They contain training data, so they are deleted even if the run is kept."""
DUPLICATES_S = 120.0
"""Seconds for which the log recognises a message id. nats-server 2.15.1 has no default for streams with sources."""


def configs(run: str, replicas: int = 1, duplicates_s: float = DUPLICATES_S) -> tuple[StreamConfig, StreamConfig]:
    """Return the configurations of the votes stream and of the log, with 1, 3 or 5 `replicas` in a cluster.

    The log must accept larger messages than the votes stream. Otherwise one large vote would stop all copying."""
    votes = StreamConfig(
        name=votes_stream(run),
        subjects=votes_subjects(run),
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        max_msgs_per_subject=MAX_VOTES,
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
    """Return the configuration of the stream of sampled completions."""
    return StreamConfig(
        name=completions_stream(run),
        subjects=[Subjects(run).completions],
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_bytes=COMPLETIONS_BYTES,
        max_msgs=MAX_COMPLETIONS,
        max_age=COMPLETIONS_AGE_S,
        max_msg_size=COMPLETION_BYTES,
        no_ack=True,
        num_replicas=replicas,
    )


async def create_completions(js: JetStreamContext, run: str, replicas: int = 1) -> str:
    """Create the stream of sampled completions if it does not exist. Return the error's text, or an empty string."""
    try:
        await js.add_stream(completions_config(run, replicas))
    except (APIError, TimeoutError, NatsError) as error:
        return str(getattr(error, "description", None) or reason(error))
    return ""


async def exists(js: JetStreamContext, run: str) -> bool:
    """Return whether the run's log exists."""
    try:
        await js.stream_info(log_stream(run))
    except NotFoundError:
        return False
    return True


async def create(js: JetStreamContext, run: str, replicas: int = 1, *, duplicates_s: float = DUPLICATES_S) -> None:
    """Create the votes stream and the log. Raises NameInUseError if the log exists, or BusError on a refusal."""
    if await exists(js, run):
        remedy = "choose another name, or continue it with --resume"
        raise NameInUseError(f"run {run!r} already exists on this server; {remedy}")
    try:
        for config in configs(run, replicas, duplicates_s):
            await js.add_stream(config)
    except APIError as error:
        cause = f"{error.description} ({error.err_code})"
        raise BusError(f"the server refused the streams of run {run!r}: {cause}") from error


async def delete(js: JetStreamContext, run: str) -> None:
    """Delete all streams of the run. Ignore missing streams and timeouts."""
    for name in (log_stream(run), votes_stream(run), completions_stream(run)):
        with contextlib.suppress(NotFoundError, TimeoutError):
            await js.delete_stream(name)
