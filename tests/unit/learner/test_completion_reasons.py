"""A judge's reasons, from its answer to the sample that is shown; and a sample's numbers, cuts and turns."""

from __future__ import annotations

import asyncio
import marshal
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.scripted_provider import Scripted
from tests.support.unswappable import Unswappable

from oven_core.protocol.committee_requests import ScoreRequest
from oven_core.protocol.completion_messages import COMPLETION_BYTES, SampledGroup
from oven_learner.completions.sample_message import MemberVerdict, Sample, encode_group, group_fields
from oven_learner.rewards import Committee
from oven_learner.rewards.calibrated_reward import CalibratedReward
from oven_learner.rewards.member_models import RequestedModel
from oven_learner.rewards.remote_members import read_reply
from oven_learner.rewards.verdicts import Verdict
from oven_llm.judges.adversarial_controls import Controls
from oven_llm.judges.committee_member import Member
from oven_llm.judges.judge import Judge
from oven_runs.settings.completions import CompletionsSettings

PLACE = {"incarnation": 1, "number": 1, "tick": 2, "step": 3, "group": 0, "groups": 1}


class RemoteCritic(Unswappable):
    """A real member with a scripted model, asked without a bus."""

    members, deadline_s = ("critic",), 5.0

    def __init__(self) -> None:
        scripted = Scripted(lambda text: len(text) if len(text) < 5 else 0)
        self.member = Member("critic", Judge("critic", scripted, Controls()))
        self.reasons: dict[str, dict[str, str]] = {}

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, RequestedModel]) -> dict[str, list[Verdict]]:
        async def answers() -> list[Verdict]:
            replies = []
            for request in requests:
                reply = await self.member.answer(request.wire())
                assert reply.reasons.keys() <= {completion.id for completion in request.completions}, (
                    "of no known answer"
                )
                replies.append(read_reply(reply.wire(), "critic", request)[0])
                self.reasons[request.group] = dict(reply.reasons)
            return replies

        return {"critic": asyncio.run(answers())}

    def take_reasons(self, member: str, group: str) -> Mapping[str, str]:
        return self.reasons.pop(group, {})

    def close(self) -> None:
        pass


def test_a_judges_reasons_come_with_its_scores_in_the_order_of_the_group() -> None:
    def rule(completions: list[str], **_: Any) -> list[float | None]:
        return [None if text == "bb" else 0.5 for text in completions]

    remote = RemoteCritic()
    committee = Committee({"rule": rule}, remote=remote, description="A test.", weights={"rule": 1, "critic": 3})
    committee.group_size = 4
    committee(prompts=["p"] * 4, completions=["a", "bb", "a", "dddd"])
    by_rule, by_judge = committee.evidence.group_verdicts(0)
    assert (by_judge.member, by_judge.weight, by_judge.scores) == ("critic", 0.75, (0.1, 0.2, 0.1, 0.4))
    assert by_judge.reasons == {"a": "so", "bb": "so", "dddd": "so"} and not remote.reasons
    assert (by_rule.scores, by_rule.abstained) == ([0.5, None, 0.5, 0.5], "not_applicable")
    sample = Sample("p", committee.evidence.groups[0].completions, committee.last_outcome.rewards, [by_rule, by_judge])
    fields = group_fields(PLACE, sample, [0.0] * 4, CompletionsSettings(), str.upper)
    assert fields["members"][1]["reasons"] == ("SO",) * 4 and fields["members"][0]["reasons"] == ()


def test_the_policys_text_is_shown_with_the_reasons_for_the_judged_text() -> None:
    committee = Committee({}, remote=RemoteCritic(), description="A test.", calibration=CalibratedReward())
    committee.group_size = 4
    written = ("[epistemic status: 90] bb", "[epistemic status: 10] bb", "bb", "[epistemic status: 50] dddd")
    committee(prompts=["? ?"] * 4, completions=list(written), text=["cats"] * 4, question=["what?"] * 4)
    (by_judge,) = committee.evidence.group_verdicts(0)
    assert by_judge.scores == (0.2, 0.2, 0.0, 0.4)
    assert by_judge.reasons == {written[0]: "so", written[1]: "so", written[3]: "so"}
    assert committee.evidence.groups[0].originals == written


texts = st.text(st.characters(codec=None, categories=None), max_size=60)
numbers = st.none() | st.floats()


@given(
    prompt=texts,
    rows=st.lists(st.tuples(texts, numbers, numbers), max_size=20),
    scores=st.none() | st.lists(numbers, max_size=20),
    characters=st.integers(100, 400),
    most=st.integers(400, 4000),
)
def test_any_sample_becomes_a_message_that_fits_or_none(
    prompt: str, rows: list[tuple[Any, Any, Any]], scores: list[float | None] | None, characters: int, most: int
) -> None:
    completions: list[Any] = [row[0] for row in rows]
    rewards: list[Any] = [row[1] for row in rows]
    advantages: list[Any] = [row[2] for row in rows]
    sample = Sample(prompt, completions, rewards, [MemberVerdict("m\ud800", float("nan"), scores)])
    fields = group_fields(PLACE, sample, advantages, CompletionsSettings(characters=characters), None)
    assert marshal.loads(marshal.dumps(fields, 2)) == fields
    wire = encode_group(fields, most)
    if wire is None:
        return
    assert len(wire) <= most
    group = SampledGroup.model_validate_json(wire)
    assert len(group.completions) + group.left_out == len(rows)
    for (text, reward, advantage), shown in zip(rows, group.completions, strict=False):
        assert len(shown.text) + shown.cut + len(shown.end) == len(text)
        assert shown.reward is None or reward == reward
        assert shown.advantage is None or (advantage == advantage and shown.reward is not None)


def test_a_megabyte_of_control_characters_fits() -> None:
    sample = Sample("\x00" * 1_000_000, ["\x1b" * 1_000_000] * 64, [1.0] * 64, [])
    settings = CompletionsSettings(characters=100_000, completions=64)
    wire = encode_group(group_fields(PLACE, sample, [0.0] * 64, settings, None))
    assert wire is not None and len(wire) < COMPLETION_BYTES
    group = SampledGroup.model_validate_json(wire)
    assert group.prompt.cut > 990_000 and len(group.completions) == 64
