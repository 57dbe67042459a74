"""The monitor's commands that act on the run. The user confirms each command, which is sent with the user's key and
tracked until its receipt arrives. Without `--control` these commands are disabled, and their keys explain why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.events import Key

from oven_core.protocol.actuators import CHECKPOINT, ROLLBACK, UNDO
from oven_core.protocol.messages import Value
from oven_core.protocol.operator_messages import OperatorCommand
from oven_runs.log.command_result import CommandResult
from oven_tui.model import command_choices, consequences
from oven_tui.model.command_progress import progress_text, request_text
from oven_tui.model.commands import COMMANDS
from oven_tui.model.decision_entries import DecisionEntry, OpenBallot
from oven_tui.model.knob_edit import KnobEdit
from oven_tui.model.monitor_view import MonitorView
from oven_tui.screens.questions import ChoiceScreen, ConfirmScreen, KnobScreen
from oven_tui.themed_app import ThemedApp
from oven_tui.widgets.decision_list import DecisionList
from oven_tui.widgets.header import RunFacts

READ_ONLY_MESSAGE = "this monitor is read-only; start `oven-controller monitor --control` to act on the run"
PINNED_S = 4.0
"""Seconds for which the list stays on a command's row after the command has finished, so that the user can read it."""
ACTING_KEYS = {key: command.title for command in COMMANDS if command.acts_on_run for key in command.key_names()}
ACTING_ACTIONS = {command.action.partition("(")[0] for command in COMMANDS if command.acts_on_run}

if TYPE_CHECKING:
    from oven_tui.operator_session import OperatorSession


class ActingApp(ThemedApp[None]):
    """Base class of the monitor of one run, with the commands that act on it."""

    view: MonitorView
    shown: MonitorView
    facts: RunFacts
    acting_keys: ClassVar[dict[str, str]] = ACTING_KEYS
    session: OperatorSession | None = None
    """The operator's session, or None if the monitor is read-only."""

    def enable_control(self, session: OperatorSession) -> None:
        """Enable the commands that the user's key permits."""
        self.session = session
        self.refresh_bindings()

    def decisions(self) -> DecisionList:
        return self.screen_stack[0].query_one(DecisionList)

    def block_reason(self) -> str:
        """Return why the commands are disabled, or an empty string if they are enabled."""
        if self.session is None:
            return READ_ONLY_MESSAGE
        if self.view.run.ended is not None:
            return "the run has ended"
        return self.session.refusal

    def on_key_refused(self, reason: str) -> None:
        """Tell the user that the server does not let this key send commands."""
        self.notify(reason, title="this key is read-only", severity="warning", timeout=15)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide commands that act on the run from footer and palette while they are disabled."""
        return not (action in ACTING_ACTIONS and self.block_reason())

    def on_key(self, event: Key) -> None:
        """Explain why the key of a disabled command does nothing."""
        key = event.key if event.key in self.acting_keys else event.character or ""
        if key in self.acting_keys and len(self.screen_stack) == 1 and (reason := self.block_reason()):
            self.notify(reason, title=f"{self.acting_keys[key]}: disabled", severity="warning")

    def action_approve(self) -> None:
        entry = self.decisions().selected()
        if isinstance(entry, DecisionEntry) and entry.decision.verdict == "advised":
            self._confirm("approve this advice?", action="approve", of=entry.decision.id)
        elif waiting := command_choices.advised(self.view):
            self._choose_one("approve", waiting)
        else:
            self.notify("there is no advice to approve; agents' advice waits here if you press `o` and choose `advise`")

    def action_veto(self) -> None:
        entry = self.decisions().selected()
        if isinstance(entry, OpenBallot):
            self._confirm("veto this ballot?", action="veto", of=entry.opened.id)
        elif isinstance(entry, DecisionEntry) and entry.decision.verdict == "advised":
            self._confirm("veto this advice?", action="veto", of=entry.decision.id)
        elif waiting := command_choices.vetoable(self.view):
            self._choose_one("veto", waiting)
        else:
            self.notify("there is no open ballot or advice to veto; press `e` to set a knob back")

    def _choose_one(self, action: str, waiting: list[command_choices.Choice]) -> None:
        """Let the user choose, unless there is only one candidate, and ask for confirmation."""

        def confirm(subject: str) -> None:
            self._confirm(f"{action} this?", action=action, of=subject)

        if len(waiting) == 1:
            confirm(waiting[0].id)
        else:
            self._choose(f"{action} which?", waiting, confirm)

    def action_hold_or_resume(self) -> None:
        if self.view.run.hold_reason:
            self._confirm("resume training?", action="resume")
        else:
            self._confirm("hold training?", action="hold")

    def action_stop(self) -> None:
        self._confirm("stop the run?", action="stop")

    def action_checkpoint(self) -> None:
        if self._check_announced(CHECKPOINT):
            self._confirm("take a checkpoint?", action="set", actuator=CHECKPOINT)

    def action_undo_rollback(self) -> None:
        if self._check_announced(UNDO):
            self._confirm("undo the last rollback?", action="set", actuator=UNDO)

    def action_rollback(self) -> None:
        if self._check_announced(ROLLBACK):
            snapshots = command_choices.list_snapshots(self.view)
            self._choose("roll back to this snapshot, or one before it", snapshots, self._roll_back)

    def _roll_back(self, target: str) -> None:
        if target == command_choices.OTHER:
            self._edit_knob(ROLLBACK)
        else:
            value = None if target == command_choices.NEWEST else float(target)
            self._confirm("roll back?", action="set", actuator=ROLLBACK, value=value)

    def action_set_knob(self) -> None:
        entry, knobs = self.decisions().selected(), command_choices.knobs(self.view)
        selected_knob = entry.decision.actuator if isinstance(entry, DecisionEntry) else ""
        if knobs:
            knobs.sort(key=lambda choice: choice.id != selected_knob)
            self._choose("set which knob?", knobs, self._edit_knob)
        else:
            self._warn_unavailable("set", "has no knob that can be set")

    def _edit_knob(self, actuator: str) -> None:
        """Ask for the new value. The page shows the consequence, so there is no second confirmation."""
        if (spec := consequences.find_spec(self.view, actuator)) is not None:
            edit = KnobEdit(spec, self.view.run.knobs.get(actuator))
            screen = KnobScreen(edit, lambda value: self._preview_lines(actuator, value))
            self.push_screen(screen, lambda value: self._set_knob(actuator, value))

    def _set_knob(self, actuator: str, value: Value | bool) -> None:
        """Send the new value, unless the user cancelled. KnobScreen then answers False, because None may be a value."""
        if not isinstance(value, bool):
            from oven_runs.operator.operator_client import new_command

            self.send_command(new_command("set", actuator=actuator, value=value))

    def action_mute(self) -> None:
        self._choose("mute or unmute which agent?", command_choices.agents(self.view, "mute"), self._mute)

    def _mute(self, agent: str) -> None:
        action = "unmute" if agent in self.view.run.muted else "mute"
        self._confirm(f"{action} {agent}?", action=action, agent=agent)

    def action_trust(self, trusted: bool) -> None:
        action = "trust" if trusted else "distrust"
        agents = command_choices.agents(self.view, action)
        self._choose(f"{action} which agent?", agents, partial(self._choose_scope, action))

    def _choose_scope(self, action: str, agent: str) -> None:
        def confirm(actuator: str) -> None:
            actuators = (actuator,) if actuator != command_choices.ANY else ()
            self._confirm(f"{action} {agent}?", action=action, agent=agent, actuators=actuators)

        self._choose(f"{action} {agent} with", command_choices.trust_scopes(self.view), confirm)

    def action_autonomy(self) -> None:
        self._choose("autonomy of", command_choices.autonomies(self.view), self._choose_autonomy)

    def _choose_autonomy(self, actuator: str) -> None:
        self._choose(
            f"autonomy of {actuator or 'every actuator'}",
            command_choices.autonomy_levels(),
            lambda level: self._confirm("change the autonomy?", action="autonomy", actuator=actuator, autonomy=level),
        )

    def _check_announced(self, actuator: str) -> bool:
        """Return whether the learner has announced this action. Warn the user if it has not."""
        if actuator in command_choices.actions(self.view):
            return True
        self._warn_unavailable("do", f"does not support {actuator}")
        return False

    def _warn_unavailable(self, verb: str, problem: str) -> None:
        if self.view.run.started is None:
            problem = f"has not started; there is nothing to {verb} until its learner has joined"
        self.notify(f"this run {problem}", severity="warning")

    def _choose(self, title: str, candidates: list[command_choices.Choice], on_choice: Callable[[str], None]) -> None:
        """Let the user choose. The page opens immediately, so that it receives keys that were typed ahead."""
        if not candidates:
            self._warn_unavailable("choose", "has nothing to choose from")
            return

        def on_answer(choice_id: str | None) -> None:
            if choice_id is not None:
                on_choice(choice_id)

        self.push_screen(ChoiceScreen(title, candidates), on_answer)

    def _confirm(self, title: str, **fields: Any) -> None:
        from oven_runs.operator.operator_client import new_command  # imported late because the bus is slow to import

        command = new_command(**fields)

        def on_answer(reason: str | None) -> None:
            if reason is not None:
                self.send_command(command.model_copy(update={"reason": reason}))

        self.push_screen(ConfirmScreen(title, lambda: self._confirmation_lines(command)), on_answer)

    def _confirmation_lines(self, command: OperatorCommand) -> list[tuple[str, str]]:
        """Return the command's consequence, and the mesh's objection according to the log so far."""
        reply = self.view.mesh.reply(command)
        objection = f"the mesh would refuse: {reply.reason}" if reply is not None and not reply.done else ""
        return [(consequences.describe_command(self.view, command), ""), (objection, "bold red")]

    def _preview_lines(self, actuator: str, value: Value) -> list[tuple[str, str]]:
        """Return a value's consequence, the mesh's answer to an operator, and the guardrails' ruling for agents."""
        command = OperatorCommand(id="preview", action="set", actuator=actuator, value=value)
        lines = [(consequences.describe_command(self.view, command), "")]
        if not self.view.mesh.is_complete:
            return [*lines, ("the mesh's answer is unknown until the whole log has been read", "dim")]
        reply, ruling = self.view.mesh.reply(command), self.view.mesh.ruling(actuator, value)
        if reply is not None:
            verb = "accept" if reply.done else "refuse"
            lines.append((f"the mesh would {verb}: {reply.reason}", "" if reply.done else "bold red"))
        if ruling is not None and reply is not None and reply.done:
            note = ruling.note or "no objection"
            override = "; your command overrides this" if ruling.verdict == "rejected" or ruling.note else ""
            lines.append((f"guardrails for the same change by agents: {note}{override}", "dim"))
        return lines

    def send_command(self, command: OperatorCommand) -> None:
        """Send the command and show its progress on its row. Several commands can be in progress at once."""
        assert self.session is not None
        result = CommandResult(self.facts.run, command)
        self.view.commands.add_sent(result)
        if self.shown is not self.view:  # unfreeze: the user wants to see the result
            self.shown = self.view
            self.paint()
        self.decisions().pin_to(command.id)
        self._on_progress(result)
        self.run_worker(self._send(result), group="commands")

    async def _send(self, result: CommandResult) -> None:
        assert self.session is not None
        await self.session.send(result, self._on_progress)
        is_done = result.stage == "done"
        if not (is_done and self.decisions().is_pinned_to(result.command.id) and len(self.screen_stack) == 1):
            # If the command's row is visible, it shows the result. A notification would hide it.
            self.notify(
                progress_text(result),
                title=request_text(result.command)[:60],
                severity="information" if is_done else "warning",
            )
        await asyncio.sleep(PINNED_S)
        self.decisions().unpin(result.command.id)

    def _on_progress(self, _result: CommandResult) -> None:
        """Redraw only the list, immediately, because the user is waiting for the result on its row."""
        self.view.commands.mark_changed()
        if self.screen_stack and self.shown is self.view:
            decisions = self.decisions()
            decisions.view = self.view
            decisions.redraw()
