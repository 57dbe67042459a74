"""A judge behind its cache: what it said of a group in this run, it is not paid for again."""

from __future__ import annotations

from oven_core.protocol.committee_requests import ScoreRequest
from oven_llm.judges.judge import Judge
from oven_llm.judges.sanitize import visible
from oven_llm.judges.self_checks import SelfChecks
from oven_llm.judges.verdict_cache import VerdictCache, cache_key
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import Ledger


class CachedJudge:
    """Scores as a `Judge` does. Texts are looked up by what can be seen of them, whatever their ids.

    Known-bad controls stay what they are: a group from the cache is none of those that the judge is tested in, so the
    next paid one is tested when it is due; a judge under suspicion or in quarantine does not answer from its cache; and
    when it goes into quarantine, all that it said before is forgotten.
    """

    def __init__(self, judge: Judge, cache: VerdictCache, identity: str) -> None:
        """`identity`: which model answers, where and how, in words that no other judge has."""
        self.judge = judge
        self._cache, self._identity = cache, identity

    @property
    def checks(self) -> SelfChecks:
        """The judge's own."""
        return self.judge.checks

    async def score(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        """id → 0..1, as Judge.score. Raises ModelFailure."""
        texts = {completion.id: visible(completion.text).strip() for completion in request.completions}
        distinct = sorted(set(texts.values()))
        key = cache_key(self._identity, self.judge.instructions(request), visible(request.prompt).strip(), distinct)
        if self.judge.trusted and (known := self._cache.get(key, len(distinct))) is not None:
            ledger.health = self.judge.health
            by_text = dict(zip(distinct, known, strict=True))
            return {completion: by_text[text] for completion, text in texts.items()}
        try:
            scores = await self.judge.score(request, ledger)
        except ModelFailure as failure:
            if failure.kind == "fooled" and self.judge.quarantined:
                self._cache.forget()
            raise
        by_text = {text: scores[completion] for completion, text in texts.items()}
        self._cache.put(key, [by_text[text] for text in distinct])
        return scores

    async def close(self) -> None:
        """As Judge.close; the cache is whose it was given by."""
        await self.judge.close()
