"""Loads the token prior, and scales the embedding with it. A token prior gives some tokens a score between 0 and 1. The
scores are also the tokens' weights in the loss of the knob `channel.kg`.

The scores come from token frequencies in the corpus, from the stack's knowledge graph, or from a file that
`oven-controller kg token-prior --to FILE` wrote for this vocabulary. Frequencies are the graph's baseline."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import secrets
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError
from torch import Tensor

from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, reason
from oven_core.files import read_file, write_atomic
from oven_core.protocol import names
from oven_core.protocol.graph_requests import PartTaken, RequestPart, TokenPrior, TokenPriorRequest
from oven_core.protocol.names import kg_inbox
from oven_core.protocol.token_prior_format import MAX_BYTES, decode, encode, vocabulary_sha
from oven_learner.link.find_controller import Connection
from oven_recipes.pretrain.settings import KG, NO_PRIOR, UNIGRAM

log = logging.getLogger("oven.learner")

TOKEN_COUNT: Final = 358
"""Number of tokens with a score, as in the Superintelligence Oven (docs/from-the-source.md), which stored 976 bytes."""
STRENGTH: Final = 0.1
"""A token's embedding is scaled by 1 + STRENGTH · score, as in the Superintelligence Oven."""
TIMEOUT_S: Final = 150.0
"""Timeout of the whole request in seconds. The service gives up after 120."""
PART_TIMEOUT_S: Final = 10.0
"""Timeout in seconds for the acknowledgement of one part of an upload, which takes milliseconds."""
MAX_REQUEST_BYTES: Final = 700_000
"""Maximum size in bytes of a request in one message. The bus accepts 1 MiB."""
MAX_PART_BYTES: Final = 360_000
"""Maximum size in bytes of a compressed part, before base64."""


def request_token_prior(
    connection: Connection, vocabulary: Sequence[str], *, k: int = TOKEN_COUNT, deadline_s: float = TIMEOUT_S
) -> TokenPrior:
    """Request the scores of `k` tokens from the knowledge graph's service. `vocabulary` contains the tokens as strings,
    by id. May be called while an event loop runs. Raises BusError if the service refuses or does not answer in time,
    and ConfigError for an invalid vocabulary."""
    try:
        request = TokenPriorRequest(
            method="kg", vocabulary=tuple(vocabulary), vocabulary_sha=vocabulary_sha(vocabulary), k=k
        )
    except ValidationError as error:
        raise ConfigError(f"the token prior cannot be requested: {reason(error)}") from None
    with ThreadPoolExecutor(1, "oven-token-prior") as thread:
        return thread.submit(asyncio.run, _request(connection, request, deadline_s)).result()


async def _request(connection: Connection, request: TokenPriorRequest, deadline_s: float) -> TokenPrior:
    subject, credentials = names.kg("token_prior"), connection.credentials
    inbox = kg_inbox(credentials.name if credentials else "learner")
    try:
        async with (
            asyncio.timeout(deadline_s),
            Bus.connect(connection.url, credentials, name="learner", inbox=inbox) as bus,
        ):
            body = request.wire()
            if len(body) > MAX_REQUEST_BYTES:
                body = await _upload(bus, body)
            return TokenPrior.model_validate_json(await bus.request(subject, body, deadline_s))
    except TimeoutError:
        raise BusError(
            f"no answer on {subject} within {deadline_s:g} s; the service's log may have the reason"
        ) from None
    except ValidationError as error:
        raise BusError(f"{subject} did not return a valid TokenPrior ({error.error_count()} errors)") from None


async def _upload(bus: Bus, body: bytes) -> bytes:
    """Upload the request in parts, and return a short request that refers to the upload."""
    compressed, upload_id = zlib.compress(body, 6), secrets.token_hex(16)
    parts = [compressed[start : start + MAX_PART_BYTES] for start in range(0, len(compressed), MAX_PART_BYTES)]
    for number, part in enumerate(parts):
        message = RequestPart(upload=upload_id, part=number, parts=len(parts), data=base64.b64encode(part).decode())
        answer = PartTaken.model_validate_json(await bus.request(names.kg("upload"), message.wire(), PART_TIMEOUT_S))
        if answer.missing != len(parts) - number - 1:
            raise BusError(f"{names.kg('upload')} lost a part of the request; is there more than one prior service?")
    return TokenPriorRequest(upload=upload_id).wire()


SCORES_FILE: Final = "token_prior.bin"
"""File next to a run's checkpoints with the scores from the service. A restarted learner uses the same scores, even if
the graph has changed."""


def find_prior(
    source: str, token_texts: Sequence[str], counts: Tensor, folder: Path, vocabulary_file: Path
) -> dict[int, float] | None:
    """Return scores between 0 and 1 by token id, or None without a prior. `source` is none, unigram, kg, or the path of
    a file. `token_texts` has the tokens as strings, by id, and `counts` their counts in the training text. Scores from
    the service are stored in `folder`. `vocabulary_file` is only for error messages. Raises ConfigError if no service
    answers, if no score is above 0, and if the scores belong to another vocabulary."""
    sha = vocabulary_sha(token_texts)
    if source == NO_PRIOR:
        return None
    if source == UNIGRAM:
        blob, origin = _unigram_scores(counts, sha), "the corpus's frequencies"
    elif source == KG:
        blob, origin = _scores_from_service(token_texts, folder), "the knowledge graph"
    else:
        blob, origin = read_file(Path(source), "the token prior", MAX_BYTES), source
    try:
        scores = decode(blob, len(token_texts), sha)
    except ConfigError as error:
        raise ConfigError(
            f"{origin}: {error}; make one with `oven-controller kg token-prior {vocabulary_file} --method kg --to FILE`"
        ) from error
    if not all(map(math.isfinite, scores.values())):
        raise ConfigError(f"{origin} is damaged: its scores are not finite numbers; create it again")
    prior = scale_to_0_to_1(scores)
    if not any(prior.values()):
        raise ConfigError(
            f"{origin}: no token has a score above 0, so the prior would have no effect; use another one, or none"
        )
    log.info("token prior: %d tokens from %s", len(prior), origin)
    return prior


def scale_to_0_to_1(scores: Mapping[int, float]) -> dict[int, float]:
    """Scale log probabilities so that the lowest becomes 0 and the highest 1. Scores that are already between 0 and 1,
    as those from a graph, are returned unchanged."""
    low, high = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    if low >= 0 and high <= 1:
        return dict(scores)
    return {token: (score - low) / (high - low) if high > low else 1.0 for token, score in scores.items()}


@torch.no_grad()
def scale_embedding(model: Any, prior: Mapping[int, float]) -> None:
    """Scale the embeddings of the tokens in `prior`, once, before training. This also scales tied output weights."""
    rows = model.get_input_embeddings().weight  # [vocabulary, hidden]
    ids = torch.tensor(list(prior), device=rows.device)
    scores = torch.tensor(list(prior.values()), dtype=rows.dtype, device=rows.device)
    rows[ids] *= (1 + STRENGTH * scores).unsqueeze(1)


def _unigram_scores(counts: Tensor, sha: str) -> bytes:
    """Return the encoded log probabilities of the most frequent tokens, as many as the service would return."""
    total = int(counts.sum())
    most_frequent = counts.topk(min(TOKEN_COUNT, int((counts > 0).sum())))
    scores = {
        int(token): math.log(int(count) / total)
        for count, token in zip(most_frequent.values, most_frequent.indices, strict=True)
    }
    return encode(scores, len(counts), sha)


def _scores_from_service(token_texts: Sequence[str], folder: Path) -> bytes:
    file = folder / SCORES_FILE
    if file.is_file():
        return read_file(file, "the token prior", MAX_BYTES)
    remedy = "start it with `oven-controller up` and the setting kg on, or give a file, `unigram` or `none`"
    try:
        connection = Connection.find()
    except ConfigError:
        raise ConfigError(
            f"token_prior = {KG} needs the prior service of a stack, which was not found: {remedy}"
        ) from None
    try:
        answer = request_token_prior(connection, token_texts, k=TOKEN_COUNT)
    except BusError as error:
        raise ConfigError(f"token_prior = {KG}: the prior service did not answer ({error}): {remedy}") from error
    log.info("token prior: graph %s…; measured: %s", answer.graph[:12], answer.ablation)
    blob = base64.b64decode(answer.blob)
    write_atomic(file, blob)
    return blob
