"""Commands from operators to a run, and the replies."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import ConfigDict, Field

from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import LogMessage, Value
from oven_core.protocol.operator_actions import ACTIONS
from oven_core.protocol.rules import Autonomy

JUDGES: Final = ("offer", "add", "remove")
"""The actions that change the members of a reward committee."""
TO_LEARNER: Final = (*(action.name for action in ACTIONS.values() if action.answer == "receipt"), *JUDGES)
"""The actions that the learner carries out; the mesh handles the others."""


class OperatorCommand(LogMessage):
    """operator → mesh. The learner carries out hold, resume, stop, offer, add and remove itself, even when no mesh is
    running."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["OperatorCommand"] = "OperatorCommand"
    id: str = Field(min_length=1, max_length=64, description="unique per command; a repetition is ignored")
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
    subject_id: str = Field(
        default="",
        max_length=64,
        alias="of",
        description="approve: a decision; veto: a decision or a ballot; by id or actuator",
    )
    actuator: str = Field(
        default="",
        max_length=128,
        description="set, autonomy (empty: all of them); offer, add, remove: `committee.<member>`",
    )
    value: Value = Field(default=None, description="set: the value; add: the member's share of the weight, 0..1")
    agent: str = Field(default="", max_length=64, description="mute, unmute, trust, distrust")
    actuators: tuple[str, ...] = Field(
        default=(), max_length=64, description="trust, distrust: on which actuators; empty: all of them"
    )
    autonomy: Autonomy | None = Field(default=None, description="autonomy: the level from now on")
    judge: JudgeSpec | None = Field(
        default=None,
        exclude_if=lambda judge: judge is None,
        description="offer: the model that becomes a choice of `committee.<member>` once it has answered; add: the new "
        "member's model",
    )
    reason: str = Field(default="", max_length=2000)


class OperatorKey(LogMessage):
    """operator → all. Registers or revokes a person's public key. Only the stack's own operator, whose key the learner
    announced, may send it. Parts of the stack cannot be named."""

    type: Literal["OperatorKey"] = "OperatorKey"
    name: str = Field(min_length=1, max_length=64, description="the person, as in the subjects of their commands")
    key: str = Field(default="", max_length=64, description="ed25519 public key, base64; empty: it is revoked")


class CommandAnswer(LogMessage):
    """mesh → operator, monitors. The result of an operator's command. The learner answers the commands that it carries
    out with a receipt."""

    type: Literal["CommandAnswer"] = "CommandAnswer"
    command: str = Field(description="the command's id")
    operator: str
    action: str
    done: bool
    reason: str = Field(description="what was done; else why not, and the remedy")
    decision: str = Field(default="", description="id of the decision that it caused")
    tick: int
