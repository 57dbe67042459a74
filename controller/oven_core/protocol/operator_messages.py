"""Messages with commands and keys of operators, and with the mesh's answers to commands."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import ConfigDict, Field

from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import LogMessage, Value
from oven_core.protocol.operator_actions import ACTIONS
from oven_core.protocol.rules import Autonomy

JUDGE_ACTIONS: Final = ("offer", "add", "remove")
"""The actions that change the members of a reward committee."""
LEARNER_ACTIONS: Final = (*(action.name for action in ACTIONS.values() if action.answer == "receipt"), *JUDGE_ACTIONS)
"""The actions that the learner handles. The mesh handles the others."""


class OperatorCommand(LogMessage):
    """operator → mesh, learner. The learner handles hold, resume, stop, offer, add and remove, even without a mesh."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["OperatorCommand"] = "OperatorCommand"
    id: str = Field(min_length=1, max_length=64, description="unique per command; repetitions are ignored")
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
        description="id or actuator of the decision to approve, or of the decision or ballot to veto",
    )
    actuator: str = Field(
        default="",
        max_length=128,
        description="the actuator; for autonomy, empty: all of them; for offer, add and remove: `committee.<member>`",
    )
    value: Value = Field(default=None, description="the value to set; for add, the member's share of the weight, 0..1")
    agent: str = Field(default="", max_length=64, description="the agent to mute, unmute, trust or distrust")
    actuators: tuple[str, ...] = Field(
        default=(), max_length=64, description="the actuators for trust and distrust; empty: all of them"
    )
    alone: bool = Field(
        default=False, description="for trust: the agent's proposal needs no second kind of evidence on these actuators"
    )
    autonomy: Autonomy | None = Field(default=None, description="the new level for autonomy")
    judge: JudgeSpec | None = Field(
        default=None,
        exclude_if=lambda judge: judge is None,
        description="for offer, the model that becomes a choice of `committee.<member>` after a successful probe; for "
        "add, the model of the new member",
    )
    reason: str = Field(default="", max_length=2000)


class OperatorKey(LogMessage):
    """operator → all. Registers or revokes a person's public key. Only the stack's operator, whose key the learner
    announced, may send this message. Keys of the stack's own processes cannot be changed."""

    type: Literal["OperatorKey"] = "OperatorKey"
    name: str = Field(
        min_length=1, max_length=64, description="name of the person, as in the subjects of their commands"
    )
    key: str = Field(default="", max_length=64, description="ed25519 public key, base64; empty: the key is revoked")


class CommandAnswer(LogMessage):
    """mesh → operator, monitors. The result of an operator's command. The learner answers the commands that it handles
    with a receipt."""

    type: Literal["CommandAnswer"] = "CommandAnswer"
    command: str = Field(description="the command's id")
    operator: str
    action: str
    done: bool
    reason: str = Field(description="what was done, or why it was refused and the remedy")
    decision: str = Field(default="", description="id of the decision that it caused")
    tick: int
