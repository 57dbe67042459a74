"""What an operator says to a run, and what the mesh answers."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import LogMessage, Value
from oven_core.protocol.operator_actions import ACTIONS
from oven_core.protocol.rules import Autonomy

JUDGES: Final = ("offer", "add", "remove")
"""The actions that change who may judge in a reward committee."""
TO_LEARNER: Final = (*(action.name for action in ACTIONS.values() if action.answer == "receipt"), *JUDGES)
"""The actions that the learner obeys; the mesh deals with the others."""


class OperatorCommand(LogMessage):
    """person → mesh; hold, resume, stop, offer, add and remove straight to the learner, which needs no mesh."""

    type: Literal["OperatorCommand"] = "OperatorCommand"
    id: str = Field(min_length=1, max_length=64, description="one per command; a repeat is ignored")
    action: Literal[
        "approve",
        "veto",
        "set",
        "hold",
        "resume",
        "mute",
        "unmute",
        "trust",
        "distrust",
        "autonomy",
        "stop",
        "offer",
        "add",
        "remove",
    ]
    of: str = Field(
        default="", max_length=64, description="approve: a decision; veto: that or a ballot; by id or actuator"
    )
    actuator: str = Field(
        default="",
        max_length=128,
        description="set, autonomy (empty: all of them); offer, add, remove: `committee.<member>`",
    )
    value: Value = Field(default=None, description="set: what to set; add: the member's share of the weight, 0..1")
    agent: str = Field(default="", max_length=64, description="mute, unmute, trust, distrust")
    actuators: tuple[str, ...] = Field(
        default=(), max_length=64, description="trust, distrust: on which actuators; empty: all of them"
    )
    autonomy: Autonomy | None = Field(default=None, description="autonomy: from now on")
    judge: JudgeSpec | None = Field(
        default=None,
        exclude_if=lambda judge: judge is None,
        description="offer: the model that is to become a choice of `committee.<member>`, once it has answered; add: "
        "the new member's",
    )
    reason: str = Field(default="", max_length=2000)


class OperatorKey(LogMessage):
    """operator → all. From here on a person's signatures count, or no longer. Only the stack's own operator, whose key
    the learner announced, may say so, and of no part of the stack."""

    type: Literal["OperatorKey"] = "OperatorKey"
    name: str = Field(min_length=1, max_length=64, description="the person, as in the subjects of their commands")
    key: str = Field(default="", max_length=64, description="ed25519 public key, base64; empty: it is taken back")


class CommandAnswer(LogMessage):
    """mesh → operator, monitors. What became of an operator's command; what goes straight to the learner is answered by
    its receipt."""

    type: Literal["CommandAnswer"] = "CommandAnswer"
    command: str = Field(description="the command's id")
    operator: str
    action: str
    done: bool
    reason: str = Field(description="what was done, or why not and what would be")
    decision: str = Field(default="", description="id of the decision that it led to")
    tick: int
