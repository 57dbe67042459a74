"""What an endpoint is asked for beside an answer: a schema to hold it to, and log-probabilities.

It begins with what the settings want and the catalogue says that there is. An endpoint that refuses is asked for less,
once, and from then on; one that ignores is found out by its answers. Either way there is a sentence that says so.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from oven_llm.providers.failures import ModelFailure
from oven_runs.settings.judge_providers import ModelEndpoint, SchemaMode

log = logging.getLogger("oven.member")

MODES: Final[dict[str, tuple[SchemaMode, ...]]] = {
    "openai": ("strict", "json_object", "none"),
    "anthropic": ("strict", "none"),
}
"""By wire format, from the most to the least that an answer can be held to."""


class Answered(Protocol):
    """What an answer tells of the terms (`Answer`)."""

    @property
    def text(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def logprobs(self) -> object | None: ...


_Answer = TypeVar("_Answer", bound=Answered)


@dataclass(frozen=True)
class Terms:
    schema: SchemaMode
    top_logprobs: int
    """Alternatives a token; 0: no log-probabilities."""


class AgreedTerms:
    """The terms in force for one model. Shared by the calls that are under way; each change is logged once."""

    def __init__(self, asked: ModelEndpoint, top_logprobs: int = 0) -> None:
        """`top_logprobs`: what is wanted; 0: none."""
        self._modes = MODES[asked.wire]
        self._asked = asked
        self.wanted = Terms("strict", top_logprobs)
        mode = asked.schema_mode if asked.schema_mode in self._modes else "none"
        self.now = Terms(mode, min(top_logprobs, asked.top_logprobs))
        self.schema_ignored = False
        """It takes a schema, and an answer did not follow it; the probe finds out."""
        self._told: set[str] = set()
        self._settled = False  # until a call went well, a refused request may be the terms' fault

    async def ask(self, once: Callable[[Terms], Awaitable[_Answer]]) -> _Answer:
        """`once` by the terms in force; by lesser ones from then on, where those are refused and lesser ones are not.
        Raises ModelFailure, the first one where everything is refused: then nothing was wrong with the terms."""
        began = terms = self.now
        try:
            answer = await once(terms)
        except ModelFailure as failure:
            if failure.kind != "bad_request" or (self._settled and began == self.now):
                raise
            if self._settled:  # another call has found out meanwhile what is refused
                began = terms = self.now
                answer = await once(terms)
            else:
                terms, answer = await self._with_less(once, terms, failure)
        if terms.top_logprobs and answer.logprobs is None and answer.text and answer.outcome != "refusal":
            terms = replace(terms, top_logprobs=0)
        if not self._settled or began == self.now:
            self._agree(terms)
        self._settled = True
        return answer

    async def _with_less(
        self, once: Callable[[Terms], Awaitable[_Answer]], refused: Terms, failure: ModelFailure
    ) -> tuple[Terms, _Answer]:
        for terms in self._lesser(refused):
            try:
                return terms, await once(terms)
            except ModelFailure as again:
                if again.kind != "bad_request":
                    raise
        raise failure

    def _lesser(self, refused: Terms) -> Iterator[Terms]:
        """Without log-probabilities first: of the two, the schema is worth more to a judge."""
        if refused.top_logprobs:
            yield replace(refused, top_logprobs=0)
        modes = self._modes[self._modes.index(refused.schema) + 1 :]
        for top in dict.fromkeys((refused.top_logprobs, 0)):
            yield from (Terms(mode, top) for mode in modes)

    def _agree(self, terms: Terms) -> None:
        if terms != self.now:
            self.now = terms
            self.tell(self.lacks())

    def tell(self, lacks: Iterable[str]) -> None:
        """Each in the log, once."""
        for lack in lacks:
            if lack not in self._told:
                self._told.add(lack)
                log.warning("%s", lack)

    def lacks(self) -> tuple[str, ...]:
        """A sentence for each thing that is wanted and is not to be had."""
        whose = f"{self._asked.model} at {self._asked.provider}"
        found = []
        if self.now.schema == "json_object":
            found.append(f"{whose} takes no JSON Schema: it is asked for any JSON object, and its verdicts are checked")
        elif self.now.schema == "none":
            found.append(
                f"{whose} takes no format of answers: it is asked for JSON in words, and its verdicts are checked"
            )
        elif self.schema_ignored:
            found.append(f"{whose} takes a JSON Schema and does not keep to it: its verdicts are checked all the same")
        if self.wanted.top_logprobs and not self.now.top_logprobs:
            found.append(f"{whose} gives no log-probabilities: it judges without them")
        elif self.now.top_logprobs < self.wanted.top_logprobs:
            most = self.now.top_logprobs
            found.append(f"{whose} gives {most} alternatives a token at most, not {self.wanted.top_logprobs}")
        return tuple(found)
