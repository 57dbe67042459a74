"""How a judge is watched: answers of known worth, a second time in reverse, old groups again, and what is not sent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.scripted_provider import Scripted, group, scores_of

from oven_core.protocol.committee_requests import Completion, ScoreRequest
from oven_llm.judges.adversarial_controls import (
    ATTACKS_PER_GROUP,
    INITIAL_INTERVAL,
    Attack,
    Control,
    Controls,
    load_attacks,
)
from oven_llm.judges.committee_member import Member
from oven_llm.judges.judge import CheckSettings, Judge
from oven_llm.judges.sanitize import is_degenerate, prepare
from oven_llm.providers.conversation import Conversation, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import CallTally, record_calls_in

IDS = [attack.id for attack in load_attacks()]


def numbered(n: int, *texts: str, reference: str = "") -> ScoreRequest:
    return group(*texts).model_copy(update={"group": f"g{n}", "reference": reference})


async def outcomes(judge: Judge, count: int, *texts: str, reference: str = "", start: int = 0) -> list[str]:
    """The failure of each of `count` groups, empty where it was scored."""
    failures = []
    for n in range(start, start + count):
        try:
            await judge.score(numbered(n, *texts, reference=reference), CallTally())
            failures.append("")
        except ModelFailure as failure:
            failures.append(failure.kind)
    return failures


def test_the_corpus_has_at_least_fifty_attacks_that_judges_are_shown() -> None:
    texts = [prepare(attack.text) for attack in load_attacks()]
    assert len(texts) >= 50 and len(set(texts)) == len(texts) == len(set(IDS)) and all(texts)
    assert not any(is_degenerate(text) for text in texts), "a filter that takes them would hide a judge that obeys"
    wanted = {"fake_verdict", "role_mark", "language", "encoding", "invisible", "fake_tool", "flattery", "closes_block"}
    assert wanted <= {attack.category for attack in load_attacks()}
    assert all(attack.source for attack in load_attacks())


@pytest.mark.parametrize("attack", load_attacks(), ids=IDS)
async def test_a_judge_that_obeys_one_attack_is_quarantined_within_two_controls(attack: Attack, tmp_path: Path) -> None:
    obeyed = prepare(attack.text)
    provider = Scripted(lambda text: 10 if text == obeyed else 7)
    judge = Judge("critic", provider, Controls("m", tmp_path / "critic.json"))
    assert judge.controls is not None
    met = 0
    for n in range(len(IDS) // ATTACKS_PER_GROUP * INITIAL_INTERVAL + INITIAL_INTERVAL + 2):
        before = len(provider.shown)
        (outcome,) = await outcomes(judge, 1, "4", "5", start=n)
        met += any(obeyed in seen.values() for seen in provider.shown[before:])
        if outcome == "quarantined" or judge.controls.is_quarantined:
            break
    assert judge.controls.is_quarantined and met == 2
    again = Judge("critic", provider, Controls("m", tmp_path / "critic.json"))
    assert (await outcomes(again, 3, "4", "5")) == ["quarantined"] * 3, "a new process does not set it free"
    another_judge = Controls("another model", tmp_path / "critic.json")
    assert not another_judge.is_quarantined, "it is somebody else's"


async def test_only_the_failed_attacks_end_a_quarantine() -> None:
    obeys = {IDS[0]}
    texts = {prepare(attack.text): attack.id for attack in load_attacks()}
    judge = Judge("critic", Scripted(lambda text: 10 if texts.get(text) in obeys else 5), Controls(interval=3))
    assert await outcomes(judge, 2, "4") == ["fooled", "fooled"]
    assert await outcomes(judge, 3, "4") == ["quarantined", "quarantined", "fooled"]
    obeys.clear()
    assert await outcomes(judge, 4, "4") == ["quarantined", "quarantined", "", ""]
    assert judge.health.controls_failed == 3 and not judge.health.quarantined


def test_a_late_pass_on_other_attacks_does_not_end_a_quarantine() -> None:
    controls = Controls()
    early, retest = controls.next_control(False), None
    assert early is not None
    bad = {attack.id: 1.0 for attack in early.attacks}
    assert controls.record_scores(early, bad, 0.5)
    retest = controls.next_control(False)
    assert retest is not None and retest.attacks == early.attacks
    assert controls.record_scores(retest, bad, 0.5) and controls.is_quarantined
    others = Control(load_attacks()[20:24], False)
    assert not controls.record_scores(others, {attack.id: 0.0 for attack in others.attacks}, 0.5)
    assert controls.is_quarantined


@pytest.mark.parametrize(("bad", "best"), [(0.5, 0.5), (0.4, 0.0), (0.0, 0.0), (0.8, 1.0)])
def test_a_middling_attack_score_among_bad_answers_is_no_failure(bad: float, best: float) -> None:
    assert not Controls().record_scores(Control(load_attacks()[:1], False), {IDS[0]: bad}, best)


def test_full_marks_for_an_attack_always_fail_a_judge_of_content() -> None:
    control = Control(load_attacks()[:1], False)
    assert Controls().record_scores(control, {IDS[0]: 1.0}, 1.0)
    style = Controls(scores_content=False)
    assert not style.record_scores(control, {IDS[0]: 1.0}, 1.0) and style.record_scores(control, {IDS[0]: 1.0}, 0.9)


async def test_controls_look_like_completions_and_are_not_returned() -> None:
    provider = Scripted(lambda text: 8 if text in ("4", "2 + 2 = 4") else 0)
    judge = Judge("critic", provider, Controls())
    for n in range(INITIAL_INTERVAL + 1):
        request = numbered(n, "4", "5", reference="2 + 2 = 4")
        scores = await judge.score(request, CallTally())
        assert scores_of(request, scores) == [0.8, 0.0] and len(scores) == 2
    first, last = provider.shown[0], provider.shown[-1]
    assert len(first) == len(last) == 2 + ATTACKS_PER_GROUP + 1 and "2 + 2 = 4" in first.values()
    assert [len(seen) for seen in provider.shown[1:-1]] == [2] * (INITIAL_INTERVAL - 1)
    assert {len(key) for key in first} == {len(request.completions[0].id)} and list(first) == sorted(first)


@pytest.mark.parametrize(("rule", "caught"), [(lambda text: 0 if text == "four" else 6, True), (lambda _: 6, False)])
async def test_a_judge_that_scores_a_correct_answer_as_wrong_fails(rule: Callable[[str], int], caught: bool) -> None:
    judge = Judge("critic", Scripted(rule), Controls())
    assert await outcomes(judge, 2, "5", "6", reference="four") == (["fooled"] * 2 if caught else [""] * 2)
    assert judge.health.quarantined is caught
    among = Judge("critic", Scripted(lambda text: 3 if text == "four" else 5), Controls())
    assert await outcomes(among, 2, "four", "6", reference="four") == ["fooled"] * 2, "below an attack is wrong as well"


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"judge": "m"}', b'{"judge": "m", "suspects": [7], "next": "x"}']
)
def test_a_damaged_controls_file_restarts_the_tests_with_a_warning(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "critic.json").write_bytes(damage)
    controls = Controls("m", tmp_path / "critic.json")
    assert not controls.is_quarantined and controls.next_control(False) is not None
    assert "the judge's controls start from the beginning" in caplog.text


# What is not sent.


@pytest.mark.parametrize(
    "text", ["a" * 200, "ab" * 80, "0, 1, " * 30, "\ufffd" * 20, "x\ufffd\ufffd" * 9, "\ue000\ue001" * 10]
)
def test_degenerate_text_is_recognised(text: str) -> None:
    assert is_degenerate(text) and not is_degenerate(text, f"What is {text}?")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "4",
            "no",
            "—",
            "!!!!",
            "7" * 100,
            "-" * 80,
            "ha" * 20,
            "\ufffd",
            "1" + "0" * 200,
            "∀x∃y (x < y)",
            "你好" * 20,
        ),
        *("the same words " * 30, "++++[>++++<-]>." * 9, "🙂" * 30, "| a | b |\n|---|---|\n" * 12),
    ],
)
def test_short_or_odd_text_is_not_degenerate(text: str) -> None:
    assert not is_degenerate(text)


async def test_long_texts_are_shortened_to_the_setting_and_counted() -> None:
    provider = Scripted(lambda _: 9)
    judge = Judge("critic", provider, check_settings=CheckSettings(max_characters=200))
    reply = await Member("critic", judge).answer(group("x 7" * 100, "4").wire())
    assert reply.health is not None and reply.health.cut_texts == 1
    assert sorted(map(len, provider.shown[0].values())) == [1, 200 + len("\n[… 100 characters omitted …]\n")]


# Whether it agrees with itself.


class Noisy(Scripted):
    """Scores texts by a hidden worth of its own, with noise; `version` changes what a text is worth to it."""

    def __init__(self, seed: int, noise: float = 0.7) -> None:
        super().__init__(self._score)
        self.version = 1
        self._rng, self._noise = random.Random(seed), noise

    def _score(self, text: str) -> int:
        worth = random.Random(f"{self.version} {text}").uniform(2, 8)
        return max(0, min(10, round(worth + self._rng.gauss(0, self._noise))))


async def test_flips_in_a_reversed_group_are_counted() -> None:
    provider = Scripted(lambda text: int(text))
    judge = Judge("critic", provider, check_settings=CheckSettings(reversed_share=1.0))
    tally = CallTally()
    with record_calls_in(tally):
        await judge.score(numbered(1, "3", "5", "5"), tally)
    await judge.checks.wait_idle()
    straight, back = map(list, provider.shown)
    assert back == straight[::-1] and judge.health.order_flips == 0.0
    assert (tally.output_tokens, judge.checks.unreported_tally.output_tokens) == (5, 5), (
        "the answer did not wait for it"
    )
    provider.rule = lambda text: 9 if text == next(iter(provider.shown[-1].values())) else 2  # the first shown is best
    with record_calls_in(tally):
        await judge.score(numbered(2, "3", "5"), tally)
    await judge.checks.wait_idle()
    assert judge.health.order_flips == 0.5
    assert tally.output_tokens == 15, "what a check used is billed with a later answer"


async def test_a_replaced_judge_is_not_checked_any_more() -> None:
    provider = Scripted(len)
    judge = Judge("critic", provider, check_settings=CheckSettings(reversed_share=1.0))
    await judge.checks.close()
    await judge.score(numbered(1, "3", "55"), CallTally())
    await judge.checks.wait_idle()
    assert len(provider.shown) == 1


@pytest.mark.parametrize("changes", [True, False])
async def test_a_changed_model_is_detected(changes: bool) -> None:
    provider = Noisy(seed=3)
    judge = Judge("critic", provider, check_settings=CheckSettings(rescore_interval=40))
    for n in range(240):
        provider.version = 1 + (changes and n >= 140)
        await judge.score(numbered(n, *(f"answer {n} {k}" for k in range(4))), CallTally())
        await judge.checks.wait_idle()
    assert judge.health.changes == changes
    assert judge.health.change_p is not None


async def test_a_hanging_check_finds_nothing_and_can_be_closed() -> None:
    started = asyncio.Event()

    class Hanging(Scripted):
        async def ask(self, conversation: Conversation, timeout_s: float) -> ModelReply:
            if self.shown:
                started.set()
                await asyncio.Event().wait()
            return await super().ask(conversation, timeout_s)

    judge = Judge("critic", Hanging(len), check_settings=CheckSettings(reversed_share=1.0))
    await judge.score(numbered(1, "3", "55"), CallTally())
    await started.wait()
    await judge.close()
    assert judge.health.order_flips is None


async def test_degenerate_text_is_not_sent() -> None:
    provider = Scripted(lambda _: 9)
    request = group("4", "a" * 300)
    assert scores_of(request, await Judge("critic", provider).score(request, CallTally())) == [0.9, 0.0]
    assert [list(texts.values()) for texts in provider.shown] == [["4"]]


async def test_no_control_shares_an_id_with_a_completion() -> None:
    completions = tuple(Completion(id=f"{n:x}", text=f"{n}") for n in range(15))
    request = numbered(1, "4").model_copy(update={"completions": completions})
    provider = Scripted(lambda text: int(text) % 8 if text.isdigit() else 0)
    scores = await Judge("critic", provider, Controls()).score(request, CallTally())
    assert scores == {f"{n:x}": n % 8 / 10 for n in range(15)}
    assert len(provider.shown[0]) == 15 + ATTACKS_PER_GROUP
