"""What an endpoint is asked for, whatever it refuses: the most that it takes, asked for in few calls."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_llm.providers.conversation import ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.optional_features import AgreedTerms, Terms
from oven_llm.providers.usage import Usage
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import ModelEndpoint, catalogue, endpoint_of

EVERY = [Terms(mode, top) for mode in ("strict", "json_object", "none") for top in (5, 0)]


class Endpoint:
    """Takes the given terms, and gives log-probabilities where it `gives` them."""

    def __init__(self, takes: set[Terms], gives: bool = True) -> None:
        self.takes, self.gives = takes, gives
        self.tried: list[Terms] = []

    async def __call__(self, terms: Terms) -> ModelReply:
        self.tried.append(terms)
        await asyncio.sleep(0)  # others are under way
        if terms not in self.takes:
            raise ModelFailure("bad_request", "HTTP 400")
        logprobs = () if terms.top_logprobs and self.gives else None
        return ModelReply("{}", logprobs=logprobs, model="m", usage=Usage(1, 1))


def endpoint(provider: str = "openai", model: str = "m") -> ModelEndpoint:
    return endpoint_of("critic", MemberSettings(provider=provider, model=model), catalogue())


@given(st.sets(st.sampled_from(EVERY)))
def test_negotiation_finds_the_best_accepted_terms(takes: set[Terms]) -> None:
    terms, server = AgreedTerms(endpoint(), 5), Endpoint(takes)
    if not takes:
        with pytest.raises(ModelFailure, match="bad_request"):
            asyncio.run(terms.negotiate(server))
        assert terms.current == Terms("strict", 5), "nothing was learnt: it may have been the question"
        return
    asyncio.run(terms.negotiate(server))
    assert terms.current in takes and len(server.tried) == len(set(server.tried)) <= len(EVERY)
    if any(accepted.schema == "strict" for accepted in takes):
        assert terms.current.schema == "strict", "the schema is worth more than log-probabilities"
    server.tried.clear()
    asyncio.run(terms.negotiate(server))
    assert server.tried == [terms.current], "once and for all"


@pytest.mark.parametrize("takes", [{Terms("json_object", 0)}, {Terms("strict", 0)}])
async def test_concurrent_calls_with_refused_terms_are_answered(takes: set[Terms]) -> None:
    terms, server = AgreedTerms(endpoint(), 5), Endpoint(takes)
    answers = await asyncio.gather(*(terms.negotiate(server) for _ in range(16)))
    assert len(answers) == 16 and {terms.current} == takes


async def test_a_refusal_after_success_does_not_change_the_terms() -> None:
    terms, server = AgreedTerms(endpoint(), 0), Endpoint({Terms("strict", 0)})
    await terms.negotiate(server)
    server.takes = {Terms("none", 0)}
    with pytest.raises(ModelFailure, match="bad_request"):
        await terms.negotiate(server)
    assert terms.current == Terms("strict", 0) and len(server.tried) == 2


async def test_missing_log_probabilities_are_not_requested_again() -> None:
    terms, server = AgreedTerms(endpoint(), 5), Endpoint(set(EVERY), gives=False)
    await terms.negotiate(server)
    assert terms.current == Terms("strict", 0) and len(server.tried) == 1
    (lack,) = terms.missing_features()
    assert lack == "m at openai returns no log-probabilities: it judges without them"
