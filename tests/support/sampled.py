"""Sampled groups for tests: a plain one, and one with everything that a text can do to a terminal."""

from __future__ import annotations

from oven_core.protocol.completion_messages import (
    MemberScores,
    SampledGroup,
    ShownCompletion,
    ShownText,
    StoredGroup,
)

ESCAPES = "\x1b[31mred\x1b[0m\x1b]0;title\x07\r\n\x9b2J\u202egnp.exe\ttab \x00 end"
TIME = "2026-11-25T03:16:41.123456+00:00"


def judged(step: int, group: int = 0) -> SampledGroup:
    """Return a group of three answers with two members, one with reasons. One answer has no reward."""
    return SampledGroup(
        incarnation=1,
        number=step,
        tick=step + 1,
        step=step,
        group=group,
        groups=4,
        prompt=ShownText(text=f"Sort the letters of step {step}: d b a c"),
        completions=(
            ShownCompletion(text="a b c d", reward=0.9, advantage=1.41),
            ShownCompletion(text="d b a c, as they stand:\n- d\n- b", reward=0.1, advantage=-1.41),
            ShownCompletion(text="", reward=None, advantage=None),
        ),
        left_out=5,
        members=(
            MemberScores(member="exact", weight=0.5, scores=(1.0, 0.0, None)),
            MemberScores(
                member="critic",
                weight=0.5,
                scores=(0.8, 0.2, 0.0),
                reasons=("right and short", "only the question again", ""),
            ),
            MemberScores(member="style", weight=0.0, abstained="deadline"),
        ),
    )


def hostile(step: int) -> SampledGroup:
    """Return a group with control characters everywhere, a truncated text of a megabyte, and no reward."""
    return SampledGroup(
        incarnation=1,
        number=step,
        tick=step,
        step=step,
        prompt=ShownText(text=ESCAPES),
        completions=(
            ShownCompletion(text="x" * 3000, cut=996_000, end="y" * 1000),
            ShownCompletion(text=ESCAPES),
        ),
        members=(MemberScores(member="evil\x1b[2J", scores=(None, None), reasons=(ESCAPES, ""), abstained=""),),
        redacted=True,
    )


def stored(*groups: SampledGroup) -> list[StoredGroup]:
    return [StoredGroup(seq=number, time=TIME, group=group) for number, group in enumerate(groups, 1)]
