"""Replicas of the mesh on one stream, in every order that the stream allows: crashes, freezes, redeliveries, a learner
that restarts, rolls back and repeats itself. Whatever happened, each output stands in the log once, and follows.

The stream is the server as the replicas see it: one order, and a subject of the mesh takes one message ever. A replica
is a core with a place in the log and a queue of what it still has to publish, as in replica/replica_process.py.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.mesh_log import LR, MOVES, RUN, SPECS, event

from oven_core.mesh.outputs import OUTPUT_KINDS, Output
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol import names
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    LearnerMessage,
    Message,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
    Vote,
)
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.rules import Rules
from oven_runs.log.replay import replay

AGENTS = ("amy", "bob", "cat")
EVIDENCE = {"amy": ("signal:gradients:grad_norm",), "bob": ("signal:loss:loss",), "cat": ("signal:graph:",)}
RULES = Rules(
    window_ticks=2,
    silent_ticks=5,
    cooldown_ticks=1,
    expire_ticks=4,
    max_interventions=50,
    newcomers="full",
    alone={"amy": (LR, "grad.clip")},
)
FITTING: dict[str, list[Any]] = {
    LR: [0.2, 0.5, 2.0, 5.0],
    "grad.clip": [0.5, 2.0, 3.0],
    "teacher.active": ["none", "small", "big"],
    "data.mixture": [{"web": 0.4, "code": 0.4, "math": 0.2}, {"web": 0.2, "code": 0.3, "math": 0.5}],
    "run.rollback": [None, 1.0],
    "run.hold": [None],
    "run.evaluate": [None],
}

replicas = st.sampled_from((0, 1, 2))
agents = st.sampled_from(AGENTS)
actuators = st.sampled_from(MOVES)


class Replica:
    """One life: it has a place in the log, and publishes nothing before it has come to where the log's head was."""

    def __init__(self, head: int) -> None:
        self.mesh, self.position, self.head = Mesh(RUN), 0, head
        self.outbox: list[Output] = []
        self.computed: dict[str, bytes] = {}

    @property
    def follows(self) -> bool:
        return self.position >= self.head

    def read(self, entry: Event) -> None:
        followed = self.follows and self.head > 0
        outputs = self.mesh.step(entry)
        self.position += 1
        for output in outputs:
            assert output.subject not in self.computed
            self.computed[output.subject] = output.message.wire()
        if followed or self.head == 0:
            self.outbox += outputs
        elif self.follows:
            self.outbox = list(self.mesh.pending.values())


class Swarm(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Event] = []
        self.subjects_once: set[str] = set()
        self.replicas = [Replica(0) for _ in range(3)]
        self.frozen: set[int] = set()
        self.learner_messages: list[tuple[str, LearnerMessage]] = []
        self.incarnation = self.n = self.tick = self.step = self.commands = 0
        self.lockstep = self.running = False

    def append(self, subject: str, message: Message, once: bool = False) -> None:
        subject = f"oven.{RUN}.{subject}"
        if once and subject in self.subjects_once:
            return  # AlreadyLoggedError, as in the service
        self.subjects_once.add(subject)
        self.log.append(event(len(self.log) + 1, subject, message))

    def speak(self, subject: str, kind: type[LearnerMessage], **fields: Any) -> None:
        self.n += 1
        message = kind(incarnation=self.incarnation, n=self.n, **fields)
        self.learner_messages.append((subject, message))
        self.append(subject, message)

    @initialize(lockstep=st.booleans())
    def first_start(self, lockstep: bool) -> None:
        self.lockstep = lockstep
        self.start()
        for agent in AGENTS:
            self.join(agent)

    def start(self) -> None:
        self.incarnation, self.n, self.running = self.incarnation + 1, 0, True
        fields = {"actuators": SPECS, "rules": RULES, "lockstep": self.lockstep}
        self.speak("run", RunStarted, recipe="grpo", tick=self.tick, **fields)

    # What learner, agents and operators do.

    @rule(count=st.integers(1, 3), back=st.integers(0, 2))
    def observe(self, count: int, back: int) -> None:
        """Ticks go on whatever becomes of the steps."""
        self.step = max(0, self.step - 4 * (back == 2))
        for _ in range(count):
            self.tick, self.step = self.tick + 1, self.step + 1
            self.speak("observation", Observation, tick=self.tick, step=self.step, progress=0.0, metrics={"loss": 1.0})
            for agent in AGENTS if self.lockstep else ():
                self.append(f"agent.{agent}", AgentStatus(state="done", tick=self.tick))

    @rule(number=st.integers(0, 10**6))
    def say_again(self, number: int) -> None:
        """A resend after its duplicate window, or the late word of an incarnation that is dead."""
        self.append(*self.learner_messages[number % len(self.learner_messages)])

    @rule(how=st.sampled_from(["dies", "ends", "ends and waits"]), lockstep=st.booleans())
    def learner_starts_again(self, how: str, lockstep: bool) -> None:
        """After a crash or, resumed, after an end in order; votes and commands go on meanwhile."""
        if how != "dies" and self.running:
            self.speak("run", RunEnded, reason="stopped", tick=self.tick, step=self.step)
            self.running = False
        if how != "ends and waits":
            self.lockstep = lockstep
            self.start()

    @rule(
        actuator=actuators,
        pick=st.integers(0, 3),
        stances=st.tuples(*[st.sampled_from(["for", "for", "abstain", "against"])] * 2),
        ticks=st.integers(0, 3),
    )
    def campaign(self, actuator: str, pick: int, stances: tuple[str, str], ticks: int) -> None:
        """A proposal that is taken up, with the ticks that close its ballot."""
        self.propose("amy", actuator, pick, 0.9)
        for agent, stance in zip(AGENTS[1:], stances, strict=True):
            self.vote(agent, actuator, stance)
        if ticks:
            self.observe(ticks, 0)

    @rule(status=st.sampled_from(["applied", "applied", "noop", "rejected", "expired", "unknown"]))
    def answer_a_decision(self, status: Any) -> None:
        answered = {message.decision_id for _, message in self.learner_messages if isinstance(message, Receipt)}
        for entry in self.log:
            made = entry.body
            if isinstance(made, Decision) and made.verdict == "adopted" and made.id not in answered:
                change = {"before": made.before, "after": made.value if status == "applied" else made.before}
                where = {"decision_id": made.id, "actuator": made.actuator, "tick": self.tick, "step": self.step}
                self.speak("receipt", Receipt, status=status, **change, **where)
                return

    @rule(actuator=actuators, narrow=st.booleans())
    def announce_anew(self, actuator: str, narrow: bool) -> None:
        """With room for what agents propose, or with none but for its present value."""
        spec = next(spec for spec in SPECS if spec.name == actuator)
        if narrow and spec.kind in ("scalar", "choice"):
            spec = spec.model_copy(update={"low": 0.9, "high": 1.1, "choices": spec.choices[:1]})
        self.speak("run", ActuatorAnnounced, actuator=spec, tick=self.tick, step=self.step)

    @rule(agent=agents, leaves=st.booleans())
    def comes_and_goes(self, agent: str, leaves: bool) -> None:
        if leaves:
            self.append(f"agent.{agent}", AgentStatus(state="left"))
        self.join(agent)

    def join(self, agent: str) -> None:
        self.append(f"agent.{agent}", AgentStatus(state="joined", moves=MOVES))

    @rule(agent=agents, actuator=actuators, pick=st.integers(0, 3), sure=st.sampled_from([0.5, 0.9]))
    def propose(self, agent: str, actuator: str, pick: int, sure: float) -> None:
        values = FITTING[actuator]
        vote = {"actuator": actuator, "stance": "propose", "value": values[pick % len(values)], "confidence": sure}
        self.append(f"vote.{agent}", Vote(tick=self.tick, evidence=EVIDENCE[agent], **vote))

    @rule(agent=agents, actuator=actuators, stance=st.sampled_from(["for", "for", "against", "abstain"]))
    def vote(self, agent: str, actuator: str, stance: Any) -> None:
        self.append(
            f"vote.{agent}",
            Vote(actuator=actuator, stance=stance, tick=self.tick, confidence=0.8, evidence=EVIDENCE[agent]),
        )

    @rule(action=st.sampled_from(["approve", "veto", "set", "hold", "mute", "unmute", "autonomy"]), actuator=actuators)
    def command(self, action: Any, actuator: str) -> None:
        self.commands += 1
        made = [entry.body.id for entry in self.log if isinstance(entry.body, Decision | BallotOpened)]
        fields = {"of": made[-1] if made else "", "actuator": actuator, "value": FITTING[actuator][0], "agent": "bob"}
        autonomy: Any = ("observe", "advise", "auto")[self.commands % 3] if action == "autonomy" else None
        command = OperatorCommand(id=f"c{self.commands}", action=action, autonomy=autonomy, **fields)
        self.append("operator.ann", command)

    # What replicas do.

    @rule(which=replicas, count=st.integers(1, 20))
    def read(self, which: int, count: int) -> None:
        replica = self.replicas[which]
        for entry in self.log[replica.position : replica.position + count]:
            replica.read(entry)

    @rule(which=replicas)
    def publish_one(self, which: int) -> None:
        replica = self.replicas[which]
        if replica.outbox:
            output = replica.outbox.pop(0)
            self.append(output.subject.split(".", 2)[2], output.message, once=True)

    @rule(which=replicas, back=st.integers(1, 5))
    def is_delivered_again(self, which: int, back: int) -> None:
        replica = self.replicas[which]
        for entry in self.log[max(0, replica.position - back) : replica.position]:
            assert replica.mesh.step(entry) == []

    @rule(which=replicas)
    def crash(self, which: int) -> None:
        """Between any two events, and between a publication and its successor. A new one replays to the head."""
        self.replicas[which] = Replica(len(self.log))

    @rule(which=replicas)
    def freeze_or_thaw(self, which: int) -> None:
        """While it sleeps the others go on; what it meant to publish is as old as it likes when it wakes."""
        self.frozen ^= {which}

    @rule()
    def go_on(self) -> None:
        """All who are awake read and publish until nothing is left to do."""
        self.run_on([replica for number, replica in enumerate(self.replicas) if number not in self.frozen])

    def run_on(self, awake: list[Replica]) -> None:
        busy = True
        while busy:
            busy = False
            for replica in awake:
                while replica.position < len(self.log):
                    replica.read(self.log[replica.position])
                    busy = True
                for output in replica.outbox:
                    self.append(output.subject.split(".", 2)[2], output.message, once=True)
                replica.outbox.clear()

    @invariant()
    def nobody_diverged(self) -> None:
        assert [replica.mesh.divergence for replica in self.replicas] == [None] * 3

    def teardown(self) -> None:
        self.run_on(self.replicas)
        self.nobody_diverged()
        logged = [(entry.subject, entry.data) for entry in self.log if names.kind(entry.subject) in OUTPUT_KINDS]
        assert all(count == 1 for count in Counter(subject for subject, _ in logged).values())
        for replica in self.replicas:
            assert replica.computed == dict(logged) and not replica.mesh.pending
        first, *others = (vars(replica.mesh.state) | {"_numbers": None} for replica in self.replicas)
        assert all(replica == first for replica in others)
        closed = Counter(entry.body.ballot for entry in self.log if isinstance(entry.body, Decision))
        for entry in self.log:
            if isinstance(entry.body, BallotOpened):
                still_open = entry.body.id in {ballot.opened.id for ballot in self.replicas[0].mesh.ballots.values()}
                assert closed[entry.body.id] == (0 if still_open else 1)
        report = replay(self.log, RUN)
        assert report.same and not report.pending and report.equal == len(logged)


Swarm.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSwarm = Swarm.TestCase
