"""Executes commands from operators and from the learner itself, each once, and answers them with receipts.

The learner executes hold, resume and stop directly, without the mesh. A judge command offers a model to a member of the
reward committee, or adds or removes a member. Rank 0 first probes the model with a test question while training
continues. If the model passes, every rank makes the change at the same step boundary.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from oven_core.errors import OvenError, UnknownNameError, reason
from oven_core.protocol.judge_spec import actuator_of, member_of
from oven_core.protocol.operator_messages import JUDGE_ACTIONS, LEARNER_ACTIONS, OperatorCommand
from oven_learner.actuators import Actuators, ChangeResult, Status
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
EXPIRED = ChangeResult("expired", reason="the run ended before the command was executed")


@dataclass(frozen=True, slots=True)
class ProbedCommand:
    """A judge command that rank 0 has checked, with a probe if it names a model."""

    command: OperatorCommand
    refusal: str = ""
    """The reason if the command was refused, otherwise empty."""


class Commands:
    """The commands of one client. Every rank calls each method at the same steps."""

    def __init__(self, run: Run, actuators: Actuators, publish: Callable[..., None], *, leader: bool) -> None:
        """`publish(result, actuator, *, command)` sends a receipt. Only the `leader`, rank 0, probes judges."""
        self.seen_ids: set[str] = set()
        """Ids of commands that need no further execution. Copies of them are ignored."""
        self.probes: dict[str, tuple[OperatorCommand, Future[str]]] = {}
        """Member → running probe, on rank 0."""
        self.probed_commands: list[ProbedCommand] = []
        """Checked commands that rank 0 has not yet sent to the other ranks."""
        self._run, self._actuators, self._publish, self._leader = run, actuators, publish, leader
        self._answers: list[tuple[OperatorCommand, ChangeResult]] = []

    def ignore(self, ids: Iterable[str]) -> None:
        """Ignore commands of earlier incarnations, except for the learner's own, because their ids start over."""
        self.seen_ids.update(command_id for command_id in ids if not command_id.startswith(LOCAL_PREFIX))

    def execute(self, command: OperatorCommand) -> None:
        """Execute and answer a direct command, or start the probe of a judge command. Ignore copies."""
        if command.id in self.seen_ids:
            return
        if command.action in JUDGE_ACTIONS:
            self.seen_ids.add(command.id)
            if self._leader:
                refusal = self._start_probe(command)
                if refusal or command.action == "remove":
                    self.probed_commands.append(ProbedCommand(command, refusal))
        elif command.action in DIRECT_COMMANDS:
            result = _execute_directly(self._run, command)
            is_local = command.id.startswith(LOCAL_PREFIX)
            level, origin = (logging.WARNING, "learner") if is_local else (logging.INFO, "operator")
            log.log(level, "%s: %s, %s (%s)", origin, command.action, result.status, result.reason)
            self._answer(command, result)

    def take_finished_probes(self) -> tuple[ProbedCommand, ...]:
        """Return and remove the commands whose probe has finished. Rank 0 only."""
        for member, (command, probe) in [*self.probes.items()]:
            if probe.done():
                del self.probes[member]
                self.probed_commands.append(ProbedCommand(command, _refusal(probe)))
        probed_commands, self.probed_commands = tuple(self.probed_commands), []
        return probed_commands

    def apply_judge_commands(self, probed_commands: Iterable[ProbedCommand]) -> list[str]:
        """Apply judge commands. Return the changed actuators, which the caller announces before it calls `answer`."""
        changed_names: list[str] = []
        for probed in probed_commands:
            command, name, problem = probed.command, probed.command.actuator, probed.refusal
            before = self._read(name)
            if not problem:
                try:
                    changed_names += self._change_membership(command)
                except OvenError as error:
                    problem = str(error)
            success: Status = "noop" if command.action == "offer" else "applied"  # an offer changes no value
            status: Status = "rejected" if problem else success
            model = command.judge.identity if command.judge is not None else ""
            explanation = problem or JUDGE_COMMAND_REASONS[command.action].format(model)
            log.info("%s %s: %s, %s", command.action, name, status, explanation)
            self._answers.append((command, ChangeResult(status, before, self._read(name), explanation)))
        return changed_names

    def answer(self) -> None:
        """Send the receipts of the judge commands that were applied."""
        answers, self._answers = self._answers, []
        for command, result in answers:
            self._answer(command, result)

    def end(self, late_orders: Iterable[object]) -> None:
        """Answer the commands that are still open when the run ends. `late_orders` arrived too late to be executed."""
        self.answer()
        for command, _ in self.probes.values():
            self._answer(command, EXPIRED)
        for probed in self.probed_commands:
            self._answer(probed.command, EXPIRED)
        self.probes.clear()
        self.probed_commands.clear()
        for order in late_orders:
            if isinstance(order, OperatorCommand) and order.id not in self.seen_ids and order.action in LEARNER_ACTIONS:
                self._answer(order, EXPIRED)

    def _answer(self, command: OperatorCommand, result: ChangeResult) -> None:
        self.seen_ids.add(command.id)
        is_local = command.id.startswith(LOCAL_PREFIX)
        if command.action == "hold" or not is_local:  # RunEnded answers the learner's own stop
            self._publish(result, DIRECT_COMMANDS.get(command.action, command.actuator), command=command.id)

    def _start_probe(self, command: OperatorCommand) -> str:
        """Start the probe of a judge command. Return the reason for refusing the command, or an empty string."""
        membership, judge, member = self._actuators.membership, command.judge, member_of(command.actuator)
        if membership is None:
            return "this training run has no reward committee"
        if not member:
            return f"{command.actuator!r} does not name a committee member; write {actuator_of('NAME')}"
        if command.action == "add" and member in membership:
            return f"{member} is already a member; swap its model, or choose another name"
        # A "remove" while a new member's model is still being probed cancels the addition of the member.
        if command.action == "remove" and member in self.probes and member not in membership:
            addition, probe = self.probes.pop(member)
            probe.cancel()
            self.probed_commands.append(ProbedCommand(addition, "it was removed before its probe finished"))
        if command.action != "add" and member not in membership:
            members = [member_of(name) for name in self._actuators]
            current_members = [name for name in members if name and name in membership]
            return str(UnknownNameError("committee member", member, current_members))
        if member in self.probes:
            probed_judge = self.probes[member][0].judge
            model = probed_judge.identity if probed_judge is not None else "another model"
            return f"{model} is currently being probed for {member}; try again when the probe has finished"
        if command.action == "remove":
            return ""
        if judge is None:
            return "the command does not name a model"
        try:
            self.probes[member] = (command, membership.probe(member, judge, is_new=command.action == "add"))
        except Exception as error:
            return reason(error)
        return ""

    def _change_membership(self, command: OperatorCommand) -> tuple[str, ...]:
        """Apply a judge command, and return the names of the changed actuators. An OvenError means no change."""
        membership, judge, member = self._actuators.membership, command.judge, member_of(command.actuator)
        assert membership is not None  # otherwise the command was refused
        if command.action == "remove":
            return membership.remove(self._actuators, member)
        assert judge is not None
        if command.action == "add":
            share = command.value if isinstance(command.value, float | int) else 0.0
            return membership.add(self._actuators, member, judge, float(share))
        return membership.offer(self._actuators, member, judge)

    def _read(self, name: str) -> str | None:
        return str(self._actuators.read(name)) if name in self._actuators else None


def _execute_directly(run: Run, command: OperatorCommand) -> ChangeResult:
    """Hold, resume or stop the run, and return the result for the receipt."""
    cause = command.reason or "requested by an operator"
    match command.action:
        case "hold" if run.hold_reason:
            return ChangeResult("noop", reason=f"the run is already held: {run.hold_reason}")
        case "hold":
            run.hold_reason = cause
            return ChangeResult("applied", reason=cause)
        case "resume" if not run.hold_reason:
            return ChangeResult("noop", reason="the run is not held")
        case "resume":
            run.hold_reason = ""
            return ChangeResult("applied", reason=f"training continues: {cause}")
        case _ if run.stop_reason:
            return ChangeResult("noop", reason=f"the run is already stopping: {run.stop_reason}")
    run.stop_reason = cause
    return ChangeResult("applied", reason=f"the run stops after this step: {cause}")


def _refusal(probe: Future[str]) -> str:
    """Return the reason why the probe failed, or an empty string."""
    try:
        return probe.result()
    except BaseException as error:  # including a cancellation
        return f"the probe failed: {reason(error)}"
