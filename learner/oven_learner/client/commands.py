"""Executes each command from operators and from the learner itself once, and answers it with a receipt.

The learner executes hold, resume and stop directly, without the mesh. Judge commands change the reward
committee: they offer a model to a member, or add or remove a member. Rank 0 first probes the model with a test question
while training continues. The outcome takes effect at a step boundary, on every rank.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from oven_core.errors import OvenError, UnknownNameError, reason
from oven_core.protocol.judge_spec import actuator_of, member_of
from oven_core.protocol.operator_messages import JUDGE_ACTIONS, LEARNER_ACTIONS, OperatorCommand
from oven_learner.actuators import Actuators, Applied, Status
from oven_learner.client.run_actions import Run

log = logging.getLogger("oven.learner")

DIRECT_COMMANDS = {"hold": "run.hold", "resume": "run.hold", "stop": "run.stop"}
"""Commands that the learner executes without the mesh → the actuator in their receipts."""
LOCAL_PREFIX = "local-"
"""Prefix of the ids of the learner's own commands."""
JUDGE_COMMAND_REASONS = {
    "offer": "the probe of {} succeeded, and it can be chosen",
    "add": "the probe of {} succeeded, and it judges from the next step on",
    "remove": "it no longer judges, and the other members share its weight",
}
"""Action → the reason in the receipt of a successful judge command."""
EXPIRED = Applied("expired", reason="the run ended before the command was executed")


@dataclass(frozen=True, slots=True)
class ProbedCommand:
    """A judge command after its probe, with the reason if it was refused."""

    command: OperatorCommand
    refusal: str = ""


class Commands:
    """The commands of one client. Every rank calls each method at the same steps."""

    def __init__(self, run: Run, actuators: Actuators, publish: Callable[..., None], *, leader: bool) -> None:
        """`publish(applied, actuator, *, command)` sends a receipt. Only the `leader`, rank 0, probes judges."""
        self.seen_ids: set[str] = set()
        """Ids of commands that were executed or answered."""
        self._run, self._actuators, self._publish, self._leader = run, actuators, publish, leader
        self._probes: dict[str, tuple[OperatorCommand, Future[str]]] = {}  # member → running probe
        self._probed_commands: list[ProbedCommand] = []
        self._answers: list[tuple[OperatorCommand, Applied]] = []

    def ignore(self, ids: Iterable[str]) -> None:
        """Ignore commands of earlier incarnations, except for the learner's own, because their ids start over."""
        self.seen_ids.update(command_id for command_id in ids if not command_id.startswith(LOCAL_PREFIX))

    def execute(self, command: OperatorCommand) -> None:
        """Execute a new command and answer it with a receipt, or start probing its model. Ignore copies."""
        if command.id in self.seen_ids:
            return
        if command.action in JUDGE_ACTIONS:
            self.seen_ids.add(command.id)
            if self._leader:
                refusal = self._start_probe(command)
                if refusal or command.action == "remove":
                    self._probed_commands.append(ProbedCommand(command, refusal))
        elif command.action in DIRECT_COMMANDS:
            applied = _execute_directly(self._run, command)
            is_local = command.id.startswith(LOCAL_PREFIX)
            level, origin = (logging.WARNING, "learner") if is_local else (logging.INFO, "operator")
            log.log(level, "%s: %s, %s (%s)", origin, command.action, applied.status, applied.reason)
            self._answer(command, applied)

    def take_finished_probes(self) -> tuple[ProbedCommand, ...]:
        """Return and remove the commands whose probe has finished. Rank 0 only."""
        for member, (command, probe) in [*self._probes.items()]:
            if probe.done():
                del self._probes[member]
                self._probed_commands.append(ProbedCommand(command, _refusal(probe)))
        probed_commands, self._probed_commands = tuple(self._probed_commands), []
        return probed_commands

    def apply_judge_commands(self, probed_commands: Iterable[ProbedCommand]) -> list[str]:
        """Apply judge commands, and return the names of the changed actuators. Call `answer` once those actuators are
        announced."""
        changed_names: list[str] = []
        for probed in probed_commands:
            command, name, problem = probed.command, probed.command.actuator, probed.refusal
            before = self._read(name)
            if not problem:
                try:
                    changed_names += self._change_seats(command)
                except OvenError as error:
                    problem = str(error)
            status: Status = "rejected" if problem else "noop" if command.action == "offer" else "applied"
            identity = command.judge.identity if command.judge is not None else ""
            explanation = problem or JUDGE_COMMAND_REASONS[command.action].format(identity)
            log.info("%s %s: %s, %s", command.action, name, status, explanation)
            self._answers.append((command, Applied(status, before, self._read(name), explanation)))
        return changed_names

    def answer(self) -> None:
        """Send the receipts of the judge commands that were applied."""
        answers, self._answers = self._answers, []
        for command, applied in answers:
            self._answer(command, applied)

    def end(self, late_orders: Iterable[object]) -> None:
        """Answer the commands that are still open when the run ends. `late_orders` arrived too late to be executed."""
        self.answer()
        running_commands = [command for command, _ in self._probes.values()]
        for command in running_commands + [probed.command for probed in self._probed_commands]:
            self._answer(command, EXPIRED)
        self._probes.clear()
        self._probed_commands.clear()
        for order in late_orders:
            if isinstance(order, OperatorCommand) and order.id not in self.seen_ids and order.action in LEARNER_ACTIONS:
                self._answer(order, EXPIRED)

    def _answer(self, command: OperatorCommand, applied: Applied) -> None:
        self.seen_ids.add(command.id)
        is_local = command.id.startswith(LOCAL_PREFIX)
        if command.action == "hold" or not is_local:  # RunEnded answers the learner's own stop
            self._publish(applied, DIRECT_COMMANDS.get(command.action, command.actuator), command=command.id)

    def _start_probe(self, command: OperatorCommand) -> str:
        """Start the probe of a judge command. Return the reason if the command is refused, otherwise an empty
        string."""
        seats, judge, member = self._actuators.seats, command.judge, member_of(command.actuator)
        if seats is None:
            return "this training run has no reward committee"
        if not member:
            return f"{command.actuator!r} does not name a committee member; write {actuator_of('NAME')}"
        if command.action == "add" and member in seats:
            return f"{member} is already a member; swap its model, or choose another name"
        if command.action == "remove" and member in self._probes and member not in seats:
            addition, probe = self._probes.pop(member)
            probe.cancel()
            self._probed_commands.append(ProbedCommand(addition, "it was removed before its probe finished"))
        if command.action != "add" and member not in seats:
            members = [seat for name in self._actuators if (seat := member_of(name)) and seat in seats]
            return str(UnknownNameError("committee member", member, members))
        if member in self._probes:
            probed_judge = self._probes[member][0].judge
            model = probed_judge.identity if probed_judge is not None else "another model"
            return f"{model} is currently being probed for {member}; try again when the probe has finished"
        if command.action == "remove":
            return ""
        if judge is None:
            return "the command does not name a model"
        try:
            self._probes[member] = (command, seats.probe(member, judge, joins=command.action == "add"))
        except Exception as error:
            return reason(error)
        return ""

    def _change_seats(self, command: OperatorCommand) -> tuple[str, ...]:
        """Apply a judge command, and return the names of the changed actuators. If it raises OvenError, nothing has
        changed."""
        seats, judge, member = self._actuators.seats, command.judge, member_of(command.actuator)
        assert seats is not None  # otherwise the command was refused
        if command.action == "remove":
            return seats.remove(self._actuators, member)
        assert judge is not None
        if command.action == "add":
            share = command.value if isinstance(command.value, float | int) else 0.0
            return seats.add(self._actuators, member, judge, float(share))
        return seats.offer(self._actuators, member, judge)

    def _read(self, name: str) -> str | None:
        return str(self._actuators.read(name)) if name in self._actuators else None


def _execute_directly(run: Run, command: OperatorCommand) -> Applied:
    """Hold, resume or stop the run. Return the outcome for the receipt."""
    cause = command.reason or "requested by an operator"
    match command.action:
        case "hold" if run.held:
            return Applied("noop", reason=f"the run is already held: {run.held}")
        case "hold":
            run.held = cause
            return Applied("applied", reason=cause)
        case "resume" if not run.held:
            return Applied("noop", reason="the run is not held")
        case "resume":
            run.held = ""
            return Applied("applied", reason=f"training continues: {cause}")
        case _ if run.stopping:
            return Applied("noop", reason=f"the run is already stopping: {run.stopping}")
    run.stopping = cause
    return Applied("applied", reason=f"the run stops after this step: {cause}")


def _refusal(probe: Future[str]) -> str:
    try:
        return probe.result()
    except BaseException as error:  # including a cancellation
        return f"the probe failed: {reason(error)}"
