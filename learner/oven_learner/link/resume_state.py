"""What the log says of a run's earlier incarnations: where a learner that starts again has to continue from."""

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
    """What the log says of the run's earlier incarnations."""

    incarnation: int = 0
    tick: int = 0
    last_seq: int = 0
    values: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """Training → actuator → value read back at its last change."""
    unanswered: tuple[Decision, ...] = ()
    """Adopted decisions without a receipt."""
    decided: frozenset[str] = frozenset()
    """Ids of all adopted decisions: a copy of one is not a new one."""
    commands: Mapping[str, OperatorCommand | None] = field(default_factory=dict)
    """Operators' commands to the learner by id: None where a receipt answers it."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Who signs → public key, if the run is signed."""
    announced: Mapping[str, Mapping[str, ActuatorSpec]] = field(default_factory=dict)
    """Training → actuator → what was announced of it last, once the training was under way."""
    training: str = ""
    """That of the last announcement; empty where there was none."""
    offers: Mapping[str, Mapping[str, Mapping[str, JudgeSpec]]] = field(default_factory=dict)
    """Training → `committee.<member>` → identity → model that an operator offered and that answered."""


def check_signer(bus: Bus, run: str, past: ResumeState) -> None:
    """Raises ConfigError: no one believes a learner that continues with a signed run under another key."""
    if past.keys and (bus.signer is None or bus.signer.public != past.keys[LEARNER]):
        raise ConfigError(
            f"run {run!r} is signed by another learner's key; continue with the credentials that it began with"
        )


async def read_resume_state(
    bus: Bus, run: str, keyring: Keyring, progressed: Callable[[], None] = lambda: None
) -> ResumeState:
    """Fold the log of earlier incarnations. Raises BusError when the run has no log."""
    on = Subjects(run)
    head = await bus.head(run)
    incarnation = tick = 0
    training = ""
    trainings: dict[int, str] = {}  # of each incarnation
    values: dict[str, dict[str, Value]] = {}
    announced: dict[str, dict[str, ActuatorSpec]] = {}
    unanswered: dict[str, Decision] = {}
    decided: set[str] = set()
    commands: dict[str, OperatorCommand | None] = {}
    offers: dict[str, dict[str, dict[str, JudgeSpec]]] = {}
    wanted = [*patterns_by(run, "learner"), on.decision("*"), on.operator("*")]
    if head:
        async for event in bus.read(run, until=head, subjects=wanted):
            progressed()
            body = keyring.verify(event).body
            if isinstance(body, RunStarted | RunEnded | Observation | Receipt):
                incarnation = max(incarnation, body.incarnation)
                tick = max(tick, body.tick)
            if isinstance(body, ActuatorAnnounced):
                of_training = trainings.get(body.incarnation, training)
                announced.setdefault(of_training, {})[body.actuator.name] = body.actuator
                values.setdefault(of_training, {}).update(_told(body.actuator))
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
                of_training = trainings.get(body.incarnation, training)
                if body.command:
                    taken = _taken(commands.get(body.command), body)
                    commands[body.command] = None
                    offers.setdefault(of_training, {}).setdefault(body.actuator, {}).update(taken)
                if body.status == "applied":
                    values.setdefault(of_training, {})[body.actuator] = body.after
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


def _told(spec: ActuatorSpec) -> dict[str, Value]:
    """By its name, the value of an actuator whose announcement changes it: other components have shares that no receipt
    tells."""
    return {spec.name: spec.value} if spec.kind == "simplex" else {}


def _taken(command: OperatorCommand | None, receipt: Receipt) -> dict[str, JudgeSpec]:
    """By its identity, the model that a command offered and that could be chosen from its receipt on."""
    if command is None or command.judge is None or receipt.status not in ("applied", "noop"):
        return {}
    return {command.judge.identity: command.judge}
