"""A table of the actions of operators, for the command line, the monitor's keys and the tools of coding agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["decision", "actuator", "actuators", "agent", "value", "level", "flag"]
"""The kind of an argument. `actuators` accepts several names. `value` accepts a number, the name of a choice, shares
or nothing. A `flag` is true or false."""
Answer = Literal["receipt", "mesh", "mesh, receipt"]
"""The messages that complete an action: the learner's receipt, the mesh's answer, or the answer and then a receipt."""


@dataclass(frozen=True)
class Argument:
    """An argument of an action."""

    name: str
    field: str
    """The field of OperatorCommand that holds the argument."""
    kind: Kind
    help: str
    default: str | None = None
    """The default value. An argument without one is required, except a flag, and `value` for actuators of the kind
    `action`."""


@dataclass(frozen=True)
class Action:
    """An action of an operator. All actions also accept a reason."""

    name: str
    title: str
    """The label of the action in the monitor."""
    summary: str
    """One line without a full stop."""
    detail: str
    """Further sentences of explanation; may be empty."""
    answer: Answer
    arguments: tuple[Argument, ...] = ()
    examples: tuple[str, ...] = ("",)
    """Arguments on the command line, with shell quoting; an empty string is a call without arguments."""


_AGENT = Argument("agent", "agent", "agent", "The agent's name.")
_ACTUATORS = Argument("actuators", "actuators", "actuators", "Names of actuators; by default, all.", default="")

_TABLE: Final = (
    Action(
        "hold",
        "Hold training",
        "Pause training at the next step",
        "The learner still accepts commands. This works without a mesh.",
        answer="receipt",
        examples=('--reason "looking at the samples"',),
    ),
    Action(
        "resume",
        "Resume training",
        "Continue training after a hold",
        "This works without a mesh. (Use `up --resume` to continue a run that is down.)",
        answer="receipt",
    ),
    Action(
        "stop",
        "Stop the run",
        "End the run after this step",
        "A trainer saves a checkpoint first; your own loop has to save by itself. This works without a mesh.",
        answer="receipt",
        examples=("grpo-1121-0231",),
    ),
    Action(
        "approve",
        "Approve advice",
        "Apply an advised decision",
        "The guardrails are checked again, and the value is read back. `status` lists advice that can be approved.",
        answer="mesh, receipt",
        arguments=(Argument("decision", "subject_id", "decision", "Id or actuator of an advised decision."),),
        examples=('optimizer.lr_scale --reason "the loss does look flat"',),
    ),
    Action(
        "veto",
        "Veto",
        "Reject an open ballot at once, or advice for good",
        "",
        answer="mesh",
        arguments=(
            Argument("ballot", "subject_id", "decision", "Id or actuator of an open ballot or an advised decision."),
        ),
        examples=('optimizer.lr_scale --reason "the schedule ends soon anyway"',),
    ),
    Action(
        "set",
        "Set a knob",
        "Set a knob within its bounds, regardless of the agents",
        "The learner reads the value back.",
        answer="mesh, receipt",
        arguments=(
            Argument("actuator", "actuator", "actuator", "The actuator, as the run announces it."),
            Argument(
                "value", "value", "value", "A number, the name of a choice, or shares as JSON; optional for an action."
            ),
        ),
        examples=(
            "optimizer.lr_scale 0.5",
            """data.mixture '{"easy": 0.5, "hard": 0.5}'""",
            "run.undo_rollback",
        ),
    ),
    Action(
        "mute",
        "Mute an agent",
        "Log an agent's votes without counting them",
        "",
        answer="mesh",
        arguments=(_AGENT,),
        examples=('curriculum --reason "it chases noise"',),
    ),
    Action(
        "unmute",
        "Unmute an agent",
        "Count a muted agent's votes again",
        "",
        answer="mesh",
        arguments=(_AGENT,),
        examples=("curriculum",),
    ),
    Action(
        "trust",
        "Trust an agent",
        "Let an agent's votes decide and veto, for some knobs or all",
        "",
        answer="mesh",
        arguments=(
            _AGENT,
            _ACTUATORS,
            Argument("alone", "alone", "flag", "Let its proposals decide without a second kind of evidence."),
        ),
        examples=("clip grad.clip", "clip grad.clip --alone"),
    ),
    Action(
        "distrust",
        "Distrust an agent",
        "Put an agent on probation, so that its votes neither decide nor veto",
        "Its votes are still logged and scored.",
        answer="mesh",
        arguments=(_AGENT, _ACTUATORS),
        examples=('clip --reason "it chases noise"',),
    ),
    Action(
        "autonomy",
        "Autonomy of a knob",
        "Change what the mesh may do on its own: observe, advise or auto",
        "",
        answer="mesh",
        arguments=(
            Argument("level", "autonomy", "level", "observe: log only. advise: a person approves. auto: act."),
            Argument("actuator", "actuator", "actuator", "Name of an actuator; by default, all.", default=""),
        ),
        examples=("advise optimizer.lr_scale",),
    ),
)
ACTIONS: Final[Mapping[str, Action]] = {action.name: action for action in _TABLE}
"""The actions by name."""


def expects_receipt(action: str) -> bool:
    """Return whether the learner sends a receipt after the mesh has accepted this action."""
    return action in ACTIONS and ACTIONS[action].answer == "mesh, receipt"
