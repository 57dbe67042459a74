"""Teachers that are scripts behind a real endpoint: how often each is right, and how alike two err, is known.

A model's name says it: `teacher-FAMILY-SKILL-SHARED` is right at SKILL % of states, and at SHARED % of states (drawn
for its family) its draw is the family's, so that two of one family are right and wrong together there. Right and wrong,
answers name the state that they were given for: one that reaches another state is found out.
"""

from __future__ import annotations

import random
import re
from typing import Final

from tests.support.made_traces import LINES, edit, right_line, state_name
from tests.support.scripted_conversation import Asked, Call, Said

NAMED: Final = re.compile(r"^teacher-(?P<family>\w+)-(?P<skill>\d+)-(?P<shared>\d+)")


def script(asked: Asked) -> Said:
    """The teacher's call at a state of a made trace."""
    state = state_name(one.text for one in asked.messages)
    name, arguments = edit(chosen_line(asked.model, state, asked.sample), state)
    return Said("assistant", "", (Call(name, arguments),))


def chosen_line(model: str, state: str, sample: int = 0) -> int:
    """What the model of this name does there. Raises ValueError for another name."""
    if (named := NAMED.match(model)) is None:
        raise ValueError(f"{model!r} names no scripted teacher")
    shared = random.Random(f"shared {named['family']} {state}").random() < int(named["shared"]) / 100
    who = named["family"] if shared else model
    chance = random.Random(f"{who} {state} {sample}")
    right = right_line(state)
    if chance.random() < int(named["skill"]) / 100:
        return right
    return (right + chance.randint(1, LINES - 1)) % LINES
