"""The prior service's scores of tokens, asked for by the learner's process before a run begins.

On a separate connection that lasts as long as the question, so that the link's is not held up; and bounded in time.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import ValidationError

from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError
from oven_core.protocol import names
from oven_core.protocol.graph_requests import PartTaken, RequestPart, TokenPrior, TokenPriorRequest
from oven_core.protocol.permissions import kg_inbox
from oven_core.protocol.token_scores import decode, vocabulary_sha
from oven_learner.link.find_controller import Connection

DEADLINE_S: Final = 150.0
"""Seconds in all; the service gives its answer up after 120."""
PART_S: Final = 10.0
"""Seconds for a part of an upload to be acknowledged, which takes milliseconds."""
WHOLE: Final = 700_000
"""Bytes that a request may have to go in one message; the bus takes 1 MiB."""
PART: Final = 360_000
"""Bytes of a part, compressed, before base64."""


@dataclass(frozen=True, slots=True)
class ServedPrior:
    """Scores from the service, checked against the vocabulary that they were asked for."""

    scores: dict[int, float]
    """Token id → score; tokens that are not in it have none."""
    blob: bytes
    """The scores as a file may hold them (oven_core.protocol.token_scores)."""
    graph: str
    """SHA-256 of the graph that gave them."""
    ablation: str
    """What was measured of the method, in a sentence."""


def ask_token_prior(
    connection: Connection,
    vocabulary: Sequence[str],
    *,
    method: Literal["unigram", "kg"] = "kg",
    counts: Sequence[int] = (),
    k: int = 358,
    deadline_s: float = DEADLINE_S,
) -> ServedPrior:
    """`vocabulary`: the tokens' texts by id; `counts`: how often each is in the corpus, for `unigram`. Waits for the
    answer, in a program with an event loop, too. Raises BusError where the service does not answer in time, or refuses;
    ConfigError where what it answers is for another vocabulary or cannot be read."""
    sha = vocabulary_sha(vocabulary)
    try:
        asked = TokenPriorRequest(
            method=method, vocabulary=tuple(vocabulary), counts=tuple(counts), vocabulary_sha=sha, k=k
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ConfigError(f"no request for a token prior: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    with ThreadPoolExecutor(1, "oven-token-prior") as thread:
        told = thread.submit(asyncio.run, _ask(connection, asked, deadline_s)).result()
    blob = base64.b64decode(told.blob)
    return ServedPrior(decode(blob, len(vocabulary), sha), blob, told.graph, told.ablation)


async def _ask(connection: Connection, asked: TokenPriorRequest, deadline_s: float) -> TokenPrior:
    subject, credentials = names.kg("token_prior"), connection.credentials
    inbox = kg_inbox(credentials.name if credentials else "learner")
    try:
        async with (
            asyncio.timeout(deadline_s),
            Bus.connect(connection.url, credentials, name="learner", inbox=inbox) as bus,
        ):
            body = asked.wire()
            if len(body) > WHOLE:
                body = await _upload(bus, body)
            return TokenPrior.model_validate_json(await bus.request(subject, body, deadline_s))
    except TimeoutError:
        raise BusError(f"no answer on {subject} within {deadline_s:g} s; the service's log may say why") from None
    except ValidationError as error:
        raise BusError(f"{subject} answered no TokenPrior ({error.error_count()} faults)") from None


async def _upload(bus: Bus, body: bytes) -> bytes:
    """The request that names what was uploaded."""
    packed, id_ = zlib.compress(body, 6), secrets.token_hex(16)
    pieces = [packed[at : at + PART] for at in range(0, len(packed), PART)]
    for part, piece in enumerate(pieces):
        message = RequestPart(upload=id_, part=part, parts=len(pieces), data=base64.b64encode(piece).decode())
        answer = PartTaken.model_validate_json(await bus.request(names.kg("upload"), message.wire(), PART_S))
        if answer.missing != len(pieces) - part - 1:
            raise BusError(f"{names.kg('upload')} lost a part of the request; is there more than one prior service?")
    return TokenPriorRequest(upload=id_).wire()
