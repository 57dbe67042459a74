"""A judge's meter and its cache, without a network: no cap is exceeded, and no group is paid for twice."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.scripted_provider import Scripted, group, scores_of

from oven_core.errors import ConfigError
from oven_llm.judges.adversarial_controls import Controls
from oven_llm.judges.attack_corpus import corpus
from oven_llm.judges.cached_judge import CachedJudge
from oven_llm.judges.judge import Judge
from oven_llm.judges.sanitize import shown
from oven_llm.judges.verdict_cache import VerdictCache, cache_key
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.metered import Meter, Metered, check_priced, greatest
from oven_llm.providers.provider import Answer, Question
from oven_llm.providers.usage import Ledger, Usage, current, opened
from oven_runs.home.judge_states import FOLDER
from oven_runs.home.model_spend import Cap, ModelSpend, Refused, Spend, judges_file, read_spend
from oven_runs.settings.committee_settings import BudgetSettings

FREE = BudgetSettings()
ONE = Spend(calls=1, input_tokens=70, output_tokens=30, usd=0.5)


def spend(
    folder: Path, name: str = "critic", committee: BudgetSettings = FREE, own: BudgetSettings = FREE
) -> ModelSpend:
    caps = Cap(committee, "committee.budget"), Cap(own, f"committee.members.{name}.budget", whole=False)
    return ModelSpend(judges_file(folder), name, caps)


@pytest.mark.parametrize(
    ("cap", "room"),
    [(BudgetSettings(usd=2.4), 4), (BudgetSettings(tokens=399), 3), (BudgetSettings(calls=5), 5), (FREE, 9)],
)
def test_a_cap_holds_for_all_members_together(tmp_path: Path, cap: BudgetSettings, room: int) -> None:
    members = [spend(tmp_path, name, cap) for name in ("critic", "adversary")]
    held = [members[n % 2].hold(ONE) for n in range(9)]
    assert [isinstance(one, Refused) for one in held] == [n >= room for n in range(9)]
    if room < 9:
        assert isinstance(held[8], Refused) and not held[8].final, "what is under way may give some of it back"
        assert isinstance(held[0], int)
        members[0].book(held[0], Spend())
        assert isinstance(members[1].hold(ONE), int), "a call that was not billed leaves its room"


def test_a_member_has_a_cap_of_its_own(tmp_path: Path) -> None:
    one, other = spend(tmp_path, "critic", own=BudgetSettings(calls=1)), spend(tmp_path, "adversary")
    held = one.hold(ONE)
    assert isinstance(held, int)
    one.book(held, ONE)
    assert one.hold(ONE) == Refused(
        "committee.members.critic.budget.calls is 1, 1 are used and a call may take 1", True
    )
    assert isinstance(other.hold(ONE), int)


def test_what_is_booked_stays_and_what_a_dead_process_held_counts(tmp_path: Path) -> None:
    dead, other = spend(tmp_path), spend(tmp_path, "adversary")
    held = dead.hold(ONE)
    assert isinstance(held, int)
    dead.book(held, Spend(calls=1, input_tokens=5, usd=0.1))
    dead.hold(ONE)
    other.hold(ONE)  # of a process that lives
    assert read_spend(tmp_path)["critic"].calls == 1
    spend(tmp_path)
    assert read_spend(tmp_path) == {"critic": Spend(calls=2, input_tokens=75, output_tokens=30, usd=0.6)}


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be one" * 40, b""])
def test_books_that_are_damaged_end_the_start_with_a_remedy(tmp_path: Path, content: bytes) -> None:
    spend(tmp_path).close()
    path = tmp_path / FOLDER / "spend.sqlite"
    path.write_bytes(content)
    if content:
        with pytest.raises(ConfigError, match="remove it to count from zero, and then lower"):
            spend(tmp_path)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_spend(tmp_path)
    else:  # an empty file is a new one
        spend(tmp_path).close()


class Costly:
    """A provider that takes what the test wants: attempts that fail, and an answer or none."""

    name, model = "openai", "m"

    def __init__(self, usage: Usage | None = None, attempts: int = 1, unbilled: int = 0, raises: bool = False) -> None:
        self.usage, self.attempts, self.unbilled, self.raises = usage, attempts, unbilled, raises

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        ledger = current()
        assert ledger is not None
        for number in range(self.attempts):
            ledger.begin()
            if self.raises or number < self.attempts - 1:
                ledger.fault("timeout", billable=number >= self.unbilled)
        if self.raises:
            raise ModelFailure("timeout")
        return Answer("", "complete", "stop", "m", self.usage)

    async def close(self) -> None:
        pass


QUESTION = Question("system", "user", {}, 100)
MOST = greatest(QUESTION)


def dollars(usages: Sequence[Usage | None]) -> float:
    return sum(usage.input_tokens + usage.output_tokens for usage in usages if usage) / 1000


@pytest.mark.parametrize(
    ("provider", "calls", "unanswered", "tokens"),
    [
        (Costly(Usage(7, 3)), 1, 0, 10),
        (Costly(Usage(7, 3), attempts=3, unbilled=2), 1, 0, 10),  # two 429s, then an answer
        (Costly(Usage(7, 3), attempts=3, unbilled=1), 2, 1, 10 + MOST.input_tokens + 100),  # a time-out among them
        (Costly(None), 1, 1, MOST.input_tokens + 100),  # an answer that does not say what it took
        (Costly(attempts=2, unbilled=2, raises=True), 0, 0, 0),
        (Costly(attempts=2, unbilled=1, raises=True), 1, 1, MOST.input_tokens + 100),
    ],
)
async def test_what_was_or_may_have_been_billed_is_booked(
    tmp_path: Path, provider: Costly, calls: int, unanswered: int, tokens: int
) -> None:
    metered, ledger = Metered(provider, Meter(spend(tmp_path), dollars)), Ledger()
    with opened(ledger):
        try:
            answer = await metered.ask(QUESTION, 1.0)
        except ModelFailure:
            pass
        else:
            ledger.usages.append(answer.usage)  # as the judge does
            assert answer.cost_usd == pytest.approx(tokens / 1000)
    found = read_spend(tmp_path).get("critic", Spend())
    assert (found.calls, found.unanswered, found.tokens) == (calls, unanswered, tokens)
    assert found.usd == pytest.approx(tokens / 1000)
    assert ledger.input_tokens + ledger.output_tokens == tokens, "the learner is told the same"
    assert ledger.attempts == provider.attempts


async def test_where_no_room_is_left_no_call_is_made(tmp_path: Path) -> None:
    provider = Scripted(lambda _: 5)
    judge = Judge(
        "critic", Metered(provider, Meter(spend(tmp_path, committee=BudgetSettings(calls=2)), lambda _: None))
    )
    for text in "ab":
        await judge.score(group(text), Ledger())
    with pytest.raises(ModelFailure, match=r"budget: committee\.budget\.calls is 2, 2 are used"):
        await judge.score(group("c"), Ledger())
    assert len(provider.shown) == 2
    assert read_spend(tmp_path)["critic"].unpriced == 2


async def test_room_that_calls_under_way_hold_is_waited_for(tmp_path: Path) -> None:
    books, provider = spend(tmp_path, committee=BudgetSettings(calls=1)), Scripted(lambda _: 5)
    held = books.hold(Spend(calls=1))
    assert isinstance(held, int)
    asking = asyncio.create_task(Judge("critic", Metered(provider, Meter(books, dollars))).score(group("a"), Ledger()))
    await asyncio.sleep(0)
    assert provider.shown == []
    books.book(held, Spend())
    assert scores_of(group("a"), await asking) == [0.5]


@given(st.text(), st.text())
def test_no_tokenizer_makes_more_tokens_than_are_held(system: str, user: str) -> None:
    question = Question(system.encode(errors="ignore").decode(), user.encode(errors="ignore").decode(), {}, 9)
    assert greatest(question).input_tokens >= len(question.system.encode()) + len(question.user.encode())


def test_a_cap_in_dollars_needs_the_models_price() -> None:
    check_priced("committee member 'critic'", "m", dollars)
    with pytest.raises(
        ConfigError, match="price of 'm', the model of committee member 'critic', is not known"
    ) as raised:
        check_priced("committee member 'critic'", "m", lambda _: None)
    assert raised.value.exit_code == 2 and "committee.budget.tokens" in str(raised.value)


# The cache.


def cached(folder: Path, provider: Scripted, controls: Controls | None = None, identity: str = "it") -> CachedJudge:
    return CachedJudge(Judge("critic", provider, controls), VerdictCache(folder / "v.sqlite"), identity)


async def test_the_same_group_is_not_asked_for_again_whatever_its_ids_and_order(tmp_path: Path) -> None:
    provider = Scripted(len)
    first, again = group("a", "bb", "", "a"), group("bb", "a", "a\u200b", " ")
    assert scores_of(first, await cached(tmp_path, provider).score(first, Ledger())) == [0.1, 0.2, 0.0, 0.1]
    ledger = Ledger()
    assert scores_of(again, await cached(tmp_path, provider).score(again, ledger)) == [0.2, 0.1, 0.1, 0.0]
    assert len(provider.shown) == 1 and ledger.usages == []
    for other in (
        group("a", "bb"),
        first.model_copy(update={"prompt": "3 + 3?"}),
        first.model_copy(update={"policy": "Another model."}),
    ):
        await cached(tmp_path, provider).score(other, Ledger())
    await cached(tmp_path, provider, identity="another").score(first, Ledger())
    assert len(provider.shown) == 5


async def test_controls_are_neither_answered_from_the_cache_nor_spared_by_it(tmp_path: Path) -> None:
    attacks = {shown(attack.text) for attack in corpus()}
    likes_bad = Scripted(lambda text: 10 if text in attacks else 5)
    judge = cached(tmp_path, likes_bad, Controls(every=4))
    with pytest.raises(ModelFailure, match="fooled"):
        await judge.score(group("a"), Ledger())  # the first group is a test
    likes_bad.rule = lambda _: 5
    await judge.score(group("a"), Ledger())  # and so is the next
    await judge.score(group("a"), Ledger())
    assert len(likes_bad.shown) == 2, "from the cache, and no group of those that a test falls due by"
    await judge.score(group("b"), Ledger())
    for text in "cd":
        await judge.score(group(text), Ledger())
    likes_bad.rule = lambda text: 10 if text in attacks else 5
    with pytest.raises(ModelFailure, match="fooled"):
        await judge.score(group("e"), Ledger())
    with pytest.raises(ModelFailure, match="fooled"):
        await judge.score(group("a"), Ledger())  # under suspicion: asked, although the cache knows it
    for _ in range(3):
        with pytest.raises(ModelFailure, match="quarantined"):
            await judge.score(group("b"), Ledger())
    likes_bad.rule = lambda _: 5
    await judge.score(group("a"), Ledger())  # it sees through a control, and is back
    asked = len(likes_bad.shown)
    await judge.score(group("b"), Ledger())
    assert len(likes_bad.shown) == asked + 1, "what it said before its quarantine is forgotten"


def test_a_cache_is_bounded(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "v.sqlite", rows=10)
    keys = [cache_key("it", "", "", [str(n)]) for n in range(30)]
    for key in keys:
        cache.put(key, [0.5])
    assert [cache.get(key, 1) for key in keys] == [None] * 20 + [[0.5]] * 10


def test_a_damaged_cache_is_set_aside_in_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, key = tmp_path / "v.sqlite", cache_key("it", "", "", ["a"])
    first = VerdictCache(path)
    first.put(key, [0.5])
    first.close()
    path.write_bytes(b"\0" * 5000)
    with caplog.at_level(logging.WARNING):
        cache = VerdictCache(path)
    assert cache.get(key, 1) is None
    cache.put(key, [0.75])
    assert VerdictCache(path).get(key, 1) == [0.75]
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["the cache of verdicts was damaged"]
    assert path.with_name("v.sqlite.damaged").read_bytes() == b"\0" * 5000


def test_a_score_that_changed_on_the_disk_is_none(tmp_path: Path) -> None:
    path, key = tmp_path / "v.sqlite", cache_key("it", "", "", ["a"])
    cache = VerdictCache(path)
    cache.put(key, [0.625])
    cache.close()
    path.write_bytes(path.read_bytes().replace(b"[0.625]", b"[0.025]"))
    assert VerdictCache(path).get(key, 1) is None


def test_a_cache_that_cannot_be_used_costs_no_score(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "v.sqlite").mkdir()
    cache = VerdictCache(tmp_path / "v.sqlite")
    cache.put(b"k", [0.5])
    assert cache.get(b"k", 1) is None
    assert len(caplog.records) == 1 and json.dumps(caplog.text)
