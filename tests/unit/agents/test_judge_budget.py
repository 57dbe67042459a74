"""A judge's meter and its cache, without a network: no cap is exceeded, and no group is paid for twice."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.scripted_provider import Scripted, group, scores_of

from oven_core.errors import ConfigError
from oven_llm.judges.adversarial_controls import Controls, load_attacks
from oven_llm.judges.judge import Judge
from oven_llm.judges.sanitize import prepare
from oven_llm.judges.verdict_cache import CachedJudge, VerdictCache, cache_key
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.optional_features import AgreedTerms, Terms
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally, Usage, current_tally, record_calls_in
from oven_runs.home.model_spend import JUDGES, SPEND_FILE, Cap, ModelSpend, Refusal, Spend, read_spend
from oven_runs.settings.committee_settings import BudgetSettings
from oven_runs.settings.judge_providers import Price, catalogue, endpoint_of
from oven_runs.settings.language_models import ModelSettings

FREE = BudgetSettings()
ONE = Spend(calls=1, input_tokens=70, output_tokens=30, usd=0.5)
CRITIC, ADVERSARY = "judges/critic", "judges/adversary"


def caps(committee: BudgetSettings = FREE, own: BudgetSettings = FREE) -> list[Cap]:
    return [Cap(committee, "committee.budget", JUDGES), Cap(own, "committee.members.critic.budget", CRITIC)]


def spend(folder: Path, account: str = CRITIC, committee: BudgetSettings = FREE) -> ModelSpend:
    return ModelSpend(folder / SPEND_FILE, caps(committee), account)


@pytest.mark.parametrize(
    ("cap", "room"),
    [(BudgetSettings(usd=2.4), 4), (BudgetSettings(tokens=399), 3), (BudgetSettings(calls=5), 5), (FREE, 9)],
)
def test_a_committee_cap_covers_all_members_and_no_other_account(
    tmp_path: Path, cap: BudgetSettings, room: int
) -> None:
    members = {account: spend(tmp_path, account, cap) for account in (CRITIC, ADVERSARY)}
    accounts = [(CRITIC, ADVERSARY)[n % 2] for n in range(9)]
    held = [members[account].reserve(account, ONE) for account in accounts]
    assert [isinstance(hold, Refusal) for hold in held] == [n >= room for n in range(9)]
    assert isinstance(members[CRITIC].reserve("tuner", ONE), int)
    if room < 9:
        assert isinstance(held[8], Refusal) and not held[8].is_final, "what is under way may give some of it back"
        assert isinstance(held[0], int)
        members[CRITIC].book(held[0], Spend())
        assert isinstance(members[ADVERSARY].reserve(ADVERSARY, ONE), int), "an unbilled call leaves its room"


def test_a_member_can_have_its_own_cap(tmp_path: Path) -> None:
    ledger = ModelSpend(tmp_path / SPEND_FILE, caps(own=BudgetSettings(calls=1)), JUDGES)
    held = ledger.reserve(CRITIC, ONE)
    assert isinstance(held, int)
    ledger.book(held, ONE)
    refused = Refusal("committee.members.critic.budget.calls is 1, 1 are used and a call may take 1", True)
    assert ledger.reserve(CRITIC, ONE) == refused
    assert isinstance(ledger.reserve(ADVERSARY, ONE), int)


def test_bookings_persist_and_a_dead_process_reservations_count(tmp_path: Path) -> None:
    dead, living = spend(tmp_path), spend(tmp_path, ADVERSARY)
    held = dead.reserve(CRITIC, ONE)
    assert isinstance(held, int)
    dead.book(held, Spend(calls=1, input_tokens=5, usd=0.1))
    dead.reserve(CRITIC, ONE)
    living.reserve(ADVERSARY, ONE)  # of a process that lives
    assert read_spend(tmp_path)[CRITIC].calls == 1
    spend(tmp_path)
    expected = {CRITIC: Spend(calls=2, input_tokens=75, output_tokens=30, usd=0.6)}
    assert read_spend(tmp_path) == read_spend(tmp_path, JUDGES) == expected and read_spend(tmp_path, "tuner") == {}


def test_judges_that_start_at_the_same_moment_can_create_the_file(tmp_path: Path) -> None:
    judges = 8
    barrier = threading.Barrier(judges)

    def opened_and_closed(folder: Path) -> None:
        barrier.wait()
        spend(folder).close()

    with ThreadPoolExecutor(judges) as pool:
        for run in range(100):
            list(pool.map(opened_and_closed, [tmp_path / str(run)] * judges))


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be one" * 40, b""])
def test_a_damaged_spending_file_stops_the_start_with_a_remedy(tmp_path: Path, content: bytes) -> None:
    spend(tmp_path).close()
    (tmp_path / SPEND_FILE).write_bytes(content)
    if content:
        with pytest.raises(ConfigError, match=r"remove it to start counting at zero, and then lower committee\.budget"):
            spend(tmp_path)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_spend(tmp_path)
    else:  # an empty file is a new one
        spend(tmp_path).close()


class Costly:
    """An API whose attempts fail as the test says, and which replies or not."""

    def __init__(self, usage: Usage | None = None, attempts: int = 1, unbilled: int = 0, raises: bool = False) -> None:
        self.usage, self.attempts, self.unbilled, self.raises = usage, attempts, unbilled, raises
        self.calls_made = 0

    async def complete(self, conversation: Conversation, terms: Terms, attempt_s: float) -> ModelReply:
        self.calls_made += 1
        tally = current_tally()
        assert tally is not None
        for number in range(self.attempts):
            tally.begin_attempt()
            if self.raises or number < self.attempts - 1:
                tally.fail_attempt("timeout", billable=number >= self.unbilled)
        if self.raises:
            raise ModelFailure("timeout")
        return ModelReply("{}", model="m", usage=self.usage)

    async def close(self) -> None:
        pass


QUESTION = Conversation.question("system", "user", {}, 100)
MOST = QUESTION.max_usage()
PRICE = Price(input=1000, output=1000)


def metered(api: Costly, budget: Budget | None, price: Price | None = PRICE) -> RemoteModel:
    endpoint = endpoint_of("m", ModelSettings(provider="compatible", model="m", base_url="http://x"), catalogue(), "m")
    endpoint = replace(endpoint, price=price)
    return RemoteModel(api, endpoint, AgreedTerms(endpoint), budget, CRITIC)


@pytest.mark.parametrize(
    ("api", "calls", "unanswered", "tokens"),
    [
        (Costly(Usage(7, 3)), 1, 0, 10),
        (Costly(Usage(7, 3), attempts=3, unbilled=2), 1, 0, 10),  # two 429s, then an answer
        (Costly(Usage(7, 3), attempts=3, unbilled=1), 2, 1, 10 + MOST.input_tokens + 100),  # a time-out among them
        (Costly(None), 1, 1, MOST.input_tokens + 100),  # an answer that does not say what it took
        (Costly(attempts=2, unbilled=2, raises=True), 0, 0, 0),
        (Costly(attempts=2, unbilled=1, raises=True), 1, 1, MOST.input_tokens + 100),
    ],
)
@pytest.mark.parametrize("booked", [True, False])
async def test_every_attempt_that_may_have_been_billed_is_booked(
    tmp_path: Path, api: Costly, calls: int, unanswered: int, tokens: int, booked: bool
) -> None:
    budget, tally = Budget(caps(), tmp_path / SPEND_FILE, CRITIC) if booked else None, CallTally()
    with record_calls_in(tally):
        try:
            reply = await metered(api, budget).ask(QUESTION, 1.0)
        except ModelFailure:
            pass
        else:
            assert reply.cost_usd == pytest.approx(tokens / 1000) and reply.usage == api.usage
    if budget is not None:
        spent = budget.spent
        assert (spent.calls, spent.unanswered, spent.tokens) == (calls, unanswered, tokens)
        assert spent.usd == pytest.approx(tokens / 1000)
    assert tally.input_tokens + tally.output_tokens == tokens, "the learner is told the same"
    assert tally.attempt_count == api.attempts


async def test_no_call_is_made_beyond_the_cap(tmp_path: Path) -> None:
    api, budget = Costly(Usage(7, 3)), Budget(caps(BudgetSettings(calls=2)), tmp_path / SPEND_FILE, CRITIC)
    model = metered(api, budget, price=None)
    for _ in range(2):
        assert (await model.ask(QUESTION, 1.0)).cost_usd is None, "an unknown price is no price of zero"
    with pytest.raises(ModelFailure, match=r"budget: committee\.budget\.calls is 2, 2 are used"):
        await model.ask(QUESTION, 1.0)
    assert api.calls_made == 2 and budget.spent.unpriced == 2 and budget.cost_usd is None


async def test_a_call_waits_for_reservations_of_calls_under_way(tmp_path: Path) -> None:
    api, ledger = Costly(Usage(7, 3)), spend(tmp_path, ADVERSARY, BudgetSettings(calls=1))
    held = ledger.reserve(ADVERSARY, Spend(calls=1))
    assert isinstance(held, int)
    model = metered(api, Budget(caps(BudgetSettings(calls=1)), tmp_path / SPEND_FILE, CRITIC))
    with pytest.raises(ModelFailure, match="budget: no reply within"):
        await model.ask(QUESTION, 0.01)
    asking = asyncio.create_task(model.ask(QUESTION, 60))
    await asyncio.sleep(0)
    assert api.calls_made == 0
    ledger.book(held, Spend())
    assert (await asking).usage == Usage(7, 3)


# The cache.


def cached(folder: Path, provider: Scripted, controls: Controls | None = None, identity: str = "it") -> CachedJudge:
    return CachedJudge(Judge("critic", provider, controls), VerdictCache(folder / "v.sqlite"), identity)


async def test_a_cached_group_is_found_whatever_its_ids_and_order(tmp_path: Path) -> None:
    provider = Scripted(len)
    first, again = group("a", "bb", "", "a"), group("bb", "a", "a\u200b", " ")
    assert scores_of(first, await cached(tmp_path, provider).score(first, CallTally())) == [0.1, 0.2, 0.0, 0.1]
    tally = CallTally()
    assert scores_of(again, await cached(tmp_path, provider).score(again, tally)) == [0.2, 0.1, 0.1, 0.0]
    assert len(provider.shown) == 1 and tally.usages == []
    for request in (
        group("a", "bb"),
        first.model_copy(update={"prompt": "3 + 3?"}),
        first.model_copy(update={"policy": "Another model."}),
    ):
        await cached(tmp_path, provider).score(request, CallTally())
    await cached(tmp_path, provider, identity="another").score(first, CallTally())
    assert len(provider.shown) == 5


async def test_the_cache_does_not_interfere_with_controls(tmp_path: Path) -> None:
    attacks = {prepare(attack.text) for attack in load_attacks()}
    likes_bad = Scripted(lambda text: 10 if text in attacks else 5)
    judge = cached(tmp_path, likes_bad, Controls(interval=4))
    with pytest.raises(ModelFailure, match="fooled"):
        await judge.score(group("a"), CallTally())  # the first group is a test
    likes_bad.rule = lambda _: 5
    await judge.score(group("a"), CallTally())  # and so is the next
    await judge.score(group("a"), CallTally())
    assert len(likes_bad.shown) == 2, "from the cache, and no group of those that a test falls due by"
    await judge.score(group("b"), CallTally())
    for text in "cd":
        await judge.score(group(text), CallTally())
    likes_bad.rule = lambda text: 10 if text in attacks else 5
    with pytest.raises(ModelFailure, match="fooled"):
        await judge.score(group("e"), CallTally())
    with pytest.raises(ModelFailure, match="fooled"):
        await judge.score(group("a"), CallTally())  # under suspicion: asked, although the cache knows it
    for _ in range(3):
        with pytest.raises(ModelFailure, match="quarantined"):
            await judge.score(group("b"), CallTally())
    likes_bad.rule = lambda _: 5
    await judge.score(group("a"), CallTally())  # it sees through a control, and is back
    calls_before = len(likes_bad.shown)
    await judge.score(group("b"), CallTally())
    assert len(likes_bad.shown) == calls_before + 1, "what it said before its quarantine is forgotten"


def test_a_cache_is_bounded(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "v.sqlite", max_rows=10)
    keys = [cache_key("it", "", "", [str(n)]) for n in range(30)]
    for key in keys:
        cache.put(key, [0.5])
    assert [cache.get(key, 1) for key in keys] == [None] * 20 + [[0.5]] * 10


def test_a_damaged_cache_is_not_used_and_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, key = tmp_path / "v.sqlite", cache_key("it", "", "", ["a"])
    path.write_bytes(b"\0" * 5000)
    with caplog.at_level(logging.WARNING):
        cache = VerdictCache(path)
    cache.put(key, [0.75])
    assert cache.get(key, 1) is None
    assert len(caplog.records) == 1 and "delete the file if it is damaged" in caplog.text


def test_an_unusable_cache_does_not_prevent_scoring(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "v.sqlite").mkdir()
    cache = VerdictCache(tmp_path / "v.sqlite")
    cache.put(b"k", [0.5])
    assert cache.get(b"k", 1) is None
    assert len(caplog.records) == 1 and json.dumps(caplog.text)
