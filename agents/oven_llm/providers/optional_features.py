"""Negotiates optional features with an endpoint: a JSON schema for replies, and log-probabilities.

The first request uses the requested features that the model supports according to the catalogue. A feature that the
endpoint refuses is not requested again. Refused features, and those that are missing in replies, are logged."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from oven_llm.providers.conversation import ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_runs.settings.judge_providers import ModelEndpoint, SchemaMode

log = logging.getLogger("oven.member")

MODES: Final[dict[str, tuple[SchemaMode, ...]]] = {
    "openai": ("strict", "json_object", "none"),
    "anthropic": ("strict", "none"),
}
"""Schema modes by wire format, strictest first."""


@dataclass(frozen=True)
class Terms:
    """The optional features of one request."""

    schema: SchemaMode
    top_logprobs: int
    """Number of alternatives per token; 0 for no log-probabilities."""


class AgreedTerms:
    """The current terms for one model, which concurrent calls share. Each change is logged once."""

    def __init__(self, endpoint: ModelEndpoint, top_logprobs: int = 0) -> None:
        """Start with the features in the catalogue. If `top_logprobs` is 0, no log-probabilities are requested."""
        self._modes = MODES[endpoint.wire]
        self._endpoint = endpoint
        self.requested = Terms("strict", top_logprobs)
        mode = endpoint.schema_mode if endpoint.schema_mode in self._modes else "none"
        self.current = Terms(mode, min(top_logprobs, endpoint.top_logprobs))
        self.is_schema_ignored = False
        """Whether the endpoint accepts a schema but a reply did not follow it. The probe sets this."""
        self._logged_notes: set[str] = set()
        self._is_settled = False
        """Whether a call has succeeded. Until then, a refused call may have been refused because of its terms."""

    async def negotiate(self, send: Callable[[Terms], Awaitable[ModelReply]]) -> ModelReply:
        """Send a request with the current terms. If they are refused, try weaker terms and keep those that work. Raises
        ModelFailure. If all terms are refused, they were not the reason, so the first failure is raised."""
        initial_terms = terms = self.current
        try:
            reply = await send(terms)
        except ModelFailure as failure:
            if failure.kind != "bad_request":
                raise
            if not self._is_settled:
                terms, reply = await self._send_with_weaker_terms(send, terms, failure)
            elif self.current != initial_terms:  # a concurrent call has changed the terms in the meantime
                initial_terms = terms = self.current
                reply = await send(terms)
            else:
                raise
        if terms.top_logprobs and reply.logprobs is None and reply.text and reply.finish != "refusal":
            terms = replace(terms, top_logprobs=0)  # the endpoint ignored the request for log-probabilities
        if not self._is_settled or self.current == initial_terms:  # no concurrent call has changed them
            self._adopt(terms)
        self._is_settled = True
        return reply

    async def _send_with_weaker_terms(
        self, send: Callable[[Terms], Awaitable[ModelReply]], refused_terms: Terms, failure: ModelFailure
    ) -> tuple[Terms, ModelReply]:
        for terms in self._list_weaker_terms(refused_terms):
            try:
                return terms, await send(terms)
            except ModelFailure as retry_failure:
                if retry_failure.kind != "bad_request":
                    raise
        raise failure

    def _list_weaker_terms(self, refused_terms: Terms) -> Iterator[Terms]:
        """Yield weaker terms. Log-probabilities are dropped first, because a judge needs the schema more."""
        weaker_modes = self._modes[self._modes.index(refused_terms.schema) + 1 :]
        if refused_terms.top_logprobs:
            yield replace(refused_terms, top_logprobs=0)
        yield from (replace(refused_terms, schema=mode) for mode in weaker_modes)
        if refused_terms.top_logprobs:
            yield from (Terms(mode, top_logprobs=0) for mode in weaker_modes)

    def _adopt(self, terms: Terms) -> None:
        if terms != self.current:
            self.current = terms
            self.log_missing_features(self.missing_features())

    def log_missing_features(self, notes: Iterable[str]) -> None:
        """Log each sentence of `missing_features` once."""
        for note in notes:
            if note not in self._logged_notes:
                self._logged_notes.add(note)
                log.warning("%s", note)

    def missing_features(self) -> tuple[str, ...]:
        """Return a sentence for each requested feature that the endpoint does not provide."""
        model = f"{self._endpoint.model} at {self._endpoint.provider}"
        notes = []
        if self.current.schema == "json_object":
            notes.append(
                f"{model} does not support JSON Schema: any JSON object is requested, and its verdicts are checked"
            )
        elif self.current.schema == "none":
            notes.append(
                f"{model} does not support structured output: the prompt asks for JSON, and its verdicts are checked"
            )
        elif self.is_schema_ignored:
            notes.append(f"{model} accepts a JSON schema but does not follow it: its verdicts are checked")
        if self.requested.top_logprobs and not self.current.top_logprobs:
            notes.append(f"{model} returns no log-probabilities: it judges without them")
        elif self.current.top_logprobs < self.requested.top_logprobs:
            limit = self.current.top_logprobs
            notes.append(f"{model} returns at most {limit} alternatives per token, not {self.requested.top_logprobs}")
        return tuple(notes)
