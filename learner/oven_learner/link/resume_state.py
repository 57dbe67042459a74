"""The state that a run's earlier incarnations left in the log, from which a restarted learner continues."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from oven_core.bus.connection import Bus
from oven_core.errors import ConfigError
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import ActuatorSpec, Decision, Observation, Receipt, RunEnded, RunStarted, Value
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import TO_LEARNER, OperatorCommand
from oven_core.protocol.subjects import patterns_by
from oven_core.security.signing import LEARNER, Keyring


@dataclass(frozen=True, slots=True)
class ResumeState:
    """The state of the run's earlier incarnations."""

    incarnation: int = 0
    tick: int = 0
    last_seq: int = 0
    values: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Training → actuator → the value that was read back at its last change."""
    unanswered: tuple[Decision, ...] = ()
    """Adopted decisions without a receipt."""
    decided: frozenset[str] = frozenset()
    """Ids of all adopted decisions. A copy of one is not a new decision."""
    commands: Mapping[str, OperatorCommand | None] = field(default_factory=dict)
    """Operators' commands to the learner by id; None if a receipt answers it."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Signer → public key, if the run is signed."""
    announced: Mapping[str, Mapping[str, ActuatorSpec]] = field(default_factory=dict)
    """Training → actuator → its last announcement during the training."""
    training: str = ""
    """The training of the last RunStarted; empty if there was none."""
    offers: Mapping[str, Mapping[str, Mapping[str, JudgeSpec]]] = field(default_factory=dict)
    """Training → `committee.<member>` → identity → a model that an operator offered and that passed its probe."""


def check_signer(bus: Bus, run: str, past: ResumeState) -> None:
    """Raise ConfigError if the run was signed with another key: its readers would reject this learner's messages."""
    if past.keys and (bus.signer is None or bus.signer.public != past.keys[LEARNER]):
        raise ConfigError(
            f"run {run!r} is signed by another learner's key; continue with the credentials that it began with"
        )


async def read_resume_state(
    bus: Bus, run: str, keyring: Keyring, progressed: Callable[[], None] = lambda: None
) -> ResumeState:
    """Fold the log of earlier incarnations. Raises BusError if the run has no log."""
    subjects = Subjects(run)
    head = await bus.head(run)
    incarnation = tick = 0
    training = ""
    trainings: dict[int, str] = {}  # by incarnation
    values: dict[str, dict[str, Value]] = {}
    announced: dict[str, dict[str, ActuatorSpec]] = {}
    unanswered: dict[str, Decision] = {}
    decided: set[str] = set()
    commands: dict[str, OperatorCommand | None] = {}
    offers: dict[str, dict[str, dict[str, JudgeSpec]]] = {}
    patterns = [*patterns_by(run, "learner"), subjects.decision("*"), subjects.operator("*")]
    if head:
        async for event in bus.read(run, until=head, subjects=patterns):
            progressed()
            body = keyring.verify(event).body
            if isinstance(body, RunStarted | RunEnded | Observation | Receipt):
                incarnation = max(incarnation, body.incarnation)
                tick = max(tick, body.tick)
            if isinstance(body, ActuatorAnnounced):
                name = trainings.get(body.incarnation, training)
                announced.setdefault(name, {})[body.actuator.name] = body.actuator
                values.setdefault(name, {}).update(_announced_value(body.actuator))
            if isinstance(body, RunStarted):
                training = trainings.setdefault(body.incarnation, body.training)
            if isinstance(body, Decision) and body.verdict == "adopted":
                if body.id not in decided:
                    unanswered[body.id] = body
                decided.add(body.id)
            elif isinstance(body, OperatorCommand) and body.action in TO_LEARNER:
                commands.setdefault(body.id, body)
            elif isinstance(body, Receipt):
                unanswered.pop(body.decision_id, None)
                name = trainings.get(body.incarnation, training)
                if body.command:
                    models = _accepted_model(commands.get(body.command), body)
                    commands[body.command] = None
                    offers.setdefault(name, {}).setdefault(body.actuator, {}).update(models)
                if body.status == "applied":
                    values.setdefault(name, {})[body.actuator] = body.after
    return ResumeState(
        incarnation,
        tick,
        head,
        values,
        tuple(unanswered.values()),
        frozenset(decided),
        commands,
        keyring.keys or {},
        announced,
        training,
        offers,
    )


def _announced_value(spec: ActuatorSpec) -> dict[str, Value]:
    """Return name → value of a simplex: a change of its components changes shares without a receipt."""
    return {spec.name: spec.value} if spec.kind == "simplex" else {}


def _accepted_model(command: OperatorCommand | None, receipt: Receipt) -> dict[str, JudgeSpec]:
    """Return identity → model, if the command offered a model and the receipt accepts it."""
    if command is None or command.judge is None or receipt.status not in ("applied", "noop"):
        return {}
    return {command.judge.identity: command.judge}
