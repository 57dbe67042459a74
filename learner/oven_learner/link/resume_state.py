"""Reads the state of a run's earlier incarnations from the log, so that a restarted learner can continue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oven_core.errors import ConfigError
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import ActuatorSpec, Decision, Observation, Receipt, RunEnded, RunStarted, Value
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import LEARNER_ACTIONS, OperatorCommand
from oven_core.protocol.subjects import patterns_written_by
from oven_core.security.signing import LEARNER, Keyring

if TYPE_CHECKING:  # the training's process does not import nats-py
    from oven_core.bus.connection import Bus


@dataclass(slots=True)
class ResumeState:
    """The state of the run's earlier incarnations."""

    incarnation: int = 0
    tick: int = 0
    last_seq: int = 0
    """The log's last sequence number."""
    values: dict[str, dict[str, Value]] = field(default_factory=dict)
    """Training run → actuator → the value that was read back at its last change."""
    unanswered_decisions: tuple[Decision, ...] = ()
    """Adopted decisions without a receipt."""
    decided_ids: Collection[str] = ()
    """Ids of all adopted decisions, used to ignore copies."""
    commands: dict[str, OperatorCommand | None] = field(default_factory=dict)
    """Id → operator command to the learner, or None if it was answered with a receipt."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Signer → public key, if the run is signed."""
    announced: dict[str, dict[str, ActuatorSpec]] = field(default_factory=dict)
    """Training run → actuator → its last announcement during that run."""
    training: str = ""
    """The training run of the last RunStarted, or empty if there was none."""
    offers: dict[str, dict[str, dict[str, JudgeSpec]]] = field(default_factory=dict)
    """Training run → actuator (`committee.<member>`) → model identity → an offered model that has passed its probe."""


def check_signer(bus: Bus, run: str, past: ResumeState) -> None:
    """Raise ConfigError if the run is signed with another key, so that readers would reject this learner."""
    if past.keys and (bus.signer is None or bus.signer.public != past.keys[LEARNER]):
        raise ConfigError(
            f"run {run!r} is signed with another learner's key; use the credentials with which the run started"
        )


async def read_resume_state(
    bus: Bus, run: str, keyring: Keyring, on_event: Callable[[], None] = lambda: None
) -> ResumeState:
    """Return the state of earlier incarnations, from their events in the log. Raises BusError if the run has no log."""
    subjects, past = Subjects(run), ResumeState(last_seq=await bus.head(run))
    trainings: dict[int, str] = {}  # by incarnation
    decisions: dict[str, Decision | None] = {}  # None if it was answered with a receipt
    patterns = [*patterns_written_by(run, "learner"), subjects.decision("*"), subjects.operator("*")]
    if past.last_seq:
        async for event in bus.read(run, until=past.last_seq, subjects=patterns):
            on_event()
            body = keyring.verify(event).body
            if isinstance(body, RunStarted | RunEnded | Observation | Receipt):
                past.incarnation = max(past.incarnation, body.incarnation)
                past.tick = max(past.tick, body.tick)
            match body:
                case RunStarted():
                    past.training = trainings.setdefault(body.incarnation, body.training)
                case ActuatorAnnounced(actuator=spec):
                    training = trainings.get(body.incarnation, past.training)
                    past.announced.setdefault(training, {})[spec.name] = spec
                    if spec.kind == "simplex":  # changing its components also changes shares, without a receipt
                        past.values.setdefault(training, {})[spec.name] = spec.value
                case Decision(verdict="adopted"):
                    decisions.setdefault(body.id, body)
                case OperatorCommand() if body.action in LEARNER_ACTIONS:
                    past.commands.setdefault(body.id, body)
                case Receipt():
                    if body.decision_id in decisions:
                        decisions[body.decision_id] = None
                    _add_receipt(past, trainings.get(body.incarnation, past.training), body)
    past.decided_ids = frozenset(decisions)
    past.unanswered_decisions = tuple(decision for decision in decisions.values() if decision is not None)
    past.keys = keyring.keys or {}
    return past


def _add_receipt(past: ResumeState, training: str, receipt: Receipt) -> None:
    """Record the value that a receipt reports, and the model that a judge command has offered."""
    if receipt.status == "applied":
        past.values.setdefault(training, {})[receipt.actuator] = receipt.after
    if receipt.command:
        command = past.commands.get(receipt.command)
        past.commands[receipt.command] = None
        if command is not None and command.judge is not None and receipt.status in ("applied", "noop"):
            models = past.offers.setdefault(training, {}).setdefault(receipt.actuator, {})
            models[command.judge.identity] = command.judge
