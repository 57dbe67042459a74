"""Completions of policies that are shown: texts, the shape of what is none, and nothing of a trial's branches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.attached import THIRD_PARTY
from tests.support.policies import liked, trainer

from oven_core.protocol.completion_messages import SampledGroup
from oven_learner.completions.sample_message import encode_group
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


def groups(link: FakeLink) -> list[SampledGroup]:
    return [SampledGroup.model_validate_json(encode_group(fields) or b"") for fields in link.shown]


def test_texts_of_a_policy_are_shown_with_its_reward_functions(tmp_path: Any) -> None:
    def none_of_the_first(completions: Sequence[Any], **_: Any) -> list[float | None]:
        return [None] * 4 + [0.25] * (len(completions) - 4)

    job = trainer("causal", {"liked": liked, "other": none_of_the_first})
    line = FakeLink()
    job.train(link=line, completions={"every": 2, "groups": 2}, redact=str.upper)
    shown = groups(line)
    assert [(group.tick, group.step, group.group) for group in shown] == [(1, 1, 0), (1, 1, 1), (3, 3, 0), (3, 3, 1)]
    assert {group.groups for group in shown} == {2}
    first, second = shown[:2]
    assert first.form == "text" and first.redacted and first.prompt.text.isupper()
    assert [member.scores for member in first.members][1] == (None,) * 4 and second.members[1].scores == (0.25,) * 4
    for group in shown:
        for index, answer in enumerate(group.completions):
            scores = [member.scores[index] for member in group.members if member.scores[index] is not None]
            assert answer.reward == pytest.approx(sum(score for score in scores if score is not None))
            assert answer.advantage is not None
