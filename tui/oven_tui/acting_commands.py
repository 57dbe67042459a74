"""The monitor's commands that act on the run. Each is confirmed once, sent with the user's key, and followed to its
receipt. Without `--control`, the monitor has none of these commands and tells the user so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.events import Key

from oven_core.protocol.actuator_names import CHECKPOINT, ROLLBACK, UNDO
from oven_core.protocol.messages import Value
from oven_core.protocol.operator_messages import OperatorCommand
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.operator_client import new_command
from oven_tui.model import choices, consequences
from oven_tui.model.commands import COMMANDS
from oven_tui.model.commands_given import progress_text, request_text
from oven_tui.model.decisions import Decided, Open
from oven_tui.model.knob_edit import KnobEdit
from oven_tui.model.monitor_view import MonitorView
from oven_tui.screens.questions import ChoiceScreen, ConfirmScreen, KnobScreen
from oven_tui.themed_app import ThemedApp
from oven_tui.widgets.decision_list import Decisions
from oven_tui.widgets.header import About

READS_ONLY = "this monitor only reads: `oven-controller monitor --control` acts on the run"
STANDS_S = 4.0
"""Seconds for which the list stays on a command's row after it is done, so that the user can read it."""
ACTING_KEYS = {key: command.title for command in COMMANDS if command.acts for key in command.key_names()}
ACTING = {command.action.partition("(")[0] for command in COMMANDS if command.acts}

if TYPE_CHECKING:
    from oven_tui.operator_session import OperatorSession


class Acting(ThemedApp[None]):
    """The base of the monitor of one run."""

    view: MonitorView
    shown: MonitorView
    about: About
    acting_keys: ClassVar[dict[str, str]] = ACTING_KEYS
    session: OperatorSession | None = None
    """The operator's session; None if the monitor may not act."""

    def control(self, session: OperatorSession) -> None:
        """Let the user act, as far as the user's key allows."""
        self.session = session
        self.refresh_bindings()

    def decisions(self) -> Decisions:
        return self.screen_stack[0].query_one(Decisions)

    def barred(self) -> str:
        """Return why nothing may act; empty if it may."""
        if self.session is None:
            return READS_ONLY
        return self.session.refused

    def refused(self, why: str) -> None:
        """The server says that the key may not send commands."""
        self.notify(why, title="this key only reads", severity="warning", timeout=15)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide commands that act from footer and palette if nothing may act."""
        return not (action in ACTING and self.barred())

    def on_key(self, event: Key) -> None:
        """Say why a key that would act does nothing."""
        key = event.key if event.key in self.acting_keys else event.character or ""
        if key in self.acting_keys and len(self.screen_stack) == 1 and (why := self.barred()):
            self.notify(why, title=f"{self.acting_keys[key]}: not here", severity="warning")

    # ---- what is chosen

    def action_approve(self) -> None:
        entry = self.decisions().chosen()
        if isinstance(entry, Decided) and entry.decision.verdict == "advised":
            self._ask("approve this advice?", action="approve", of=entry.decision.id)
        elif waiting := choices.advised(self.view):
            self._choose_one("approve", waiting)
        else:
            self.notify("nothing is advised now: agents' advice waits here where `o` sets a knob to advise")

    def action_veto(self) -> None:
        entry = self.decisions().chosen()
        if isinstance(entry, Open):
            self._ask("veto this ballot?", action="veto", of=entry.opened.id)
        elif isinstance(entry, Decided) and entry.decision.verdict == "advised":
            self._ask("veto this advice?", action="veto", of=entry.decision.id)
        elif waiting := choices.vetoable(self.view):
            self._choose_one("veto", waiting)
        else:
            self.notify("no ballot is open and nothing is advised: there is nothing to veto; `e` sets a knob back")

    def _choose_one(self, action: str, waiting: list[choices.Choice]) -> None:
        """Let the user choose, unless there is only one candidate."""

        def ask(subject: str) -> None:
            self._ask(f"{action} this?", action=action, of=subject)

        ask(waiting[0].id) if len(waiting) == 1 else self._choose(f"{action} which?", waiting, ask)

    def action_hold_or_resume(self) -> None:
        if self.view.run.held:
            self._ask("resume training?", action="resume")
        else:
            self._ask("hold training?", action="hold")

    def action_stop(self) -> None:
        self._ask("stop the run?", action="stop")

    def action_checkpoint(self) -> None:
        if self._announced(CHECKPOINT):
            self._ask("write a checkpoint?", action="set", actuator=CHECKPOINT)

    def action_undo_rollback(self) -> None:
        if self._announced(UNDO):
            self._ask("take the last rollback back?", action="set", actuator=UNDO)

    def action_rollback(self) -> None:
        if self._announced(ROLLBACK):
            self._choose(
                "roll back to, or to the newest that is kept before it", choices.snapshots(self.view), self._roll_back
            )

    def _roll_back(self, to: str) -> None:
        if to == choices.OTHER:
            self._set(ROLLBACK)
        else:
            value = None if to == choices.NEWEST else float(to)
            self._ask("roll back?", action="set", actuator=ROLLBACK, value=value)

    def action_set_knob(self) -> None:
        entry, knobs = self.decisions().chosen(), choices.knobs(self.view)
        on = entry.decision.actuator if isinstance(entry, Decided) else ""
        if knobs:
            self._choose("set which knob?", sorted(knobs, key=lambda choice: choice.id != on), self._set)
        else:
            self._warn_nothing_to("set", "announces no knob that can be set")

    def _set(self, actuator: str) -> None:
        """Ask for the new value. The page names the consequence, so there is no second question."""
        if (spec := consequences.spec_of(self.view, actuator)) is not None:
            edit = KnobEdit(spec, self.view.run.knobs.get(actuator))
            screen = KnobScreen(edit, lambda value: self._says(actuator, value))
            self.push_screen(screen, lambda value: self._set_to(actuator, value))

    def _set_to(self, actuator: str, value: Value | bool) -> None:
        if not isinstance(value, bool):
            self.give(new_command("set", actuator=actuator, value=value))

    def action_mute(self) -> None:
        self._choose("mute or unmute which agent?", choices.agents(self.view, "mute"), self._mute)

    def _mute(self, agent: str) -> None:
        action = "unmute" if agent in self.view.run.muted else "mute"
        self._ask(f"{action} {agent}?", action=action, agent=agent)

    def action_trust(self, trusted: bool) -> None:
        action = "trust" if trusted else "distrust"
        self._choose(f"{action} which agent?", choices.agents(self.view, action), partial(self._trust_on, action))

    def _trust_on(self, action: str, agent: str) -> None:
        def trust(on: str) -> None:
            named = (on,) if on != choices.ANY else ()
            self._ask(f"{action} {agent}?", action=action, agent=agent, actuators=named)

        self._choose(f"{action} {agent} with", choices.trusted_with(self.view), trust)

    def action_autonomy(self) -> None:
        self._choose("autonomy of", choices.autonomies(self.view), self._level)

    def _level(self, on: str) -> None:
        self._choose(
            f"autonomy of {on or 'every actuator'}",
            choices.levels(),
            lambda level: self._ask("change the autonomy?", action="autonomy", actuator=on, autonomy=level),
        )

    # ---- how it is request_text

    def _announced(self, actuator: str) -> bool:
        if actuator in choices.actions(self.view):
            return True
        self._warn_nothing_to("do", f"announces no {actuator}: its learner keeps nothing for it")
        return False

    def _warn_nothing_to(self, what: str, why: str) -> None:
        if self.view.run.started is None:
            why = f"has not started: there is nothing to {what} until its learner has announced itself"
        self.notify(f"this run {why}", severity="warning")

    def _choose(self, title: str, among: list[choices.Choice], then: Callable[[str], None]) -> None:
        """Push the page at once, so that keys typed ahead reach it."""
        if not among:
            self._warn_nothing_to("choose", "has nothing to choose here")
            return
        self.push_screen(ChoiceScreen(title, among), lambda chosen: then(chosen) if chosen is not None else None)

    def _ask(self, title: str, **fields: Any) -> None:
        command = new_command(**fields)

        def answered(reason: str | None) -> None:
            if reason is not None:
                self.give(command.model_copy(update={"reason": reason}))

        self.push_screen(ConfirmScreen(title, lambda: self._weighed(command)), answered)

    def _weighed(self, command: OperatorCommand) -> list[tuple[str, str]]:
        """Return the consequence, and the mesh's objection as the log stands now."""
        reply = self.view.mesh.reply(command)
        against = f"the mesh would refuse: {reply.reason}" if reply is not None and not reply.done else ""
        return [(consequences.sentence(self.view, command), ""), (against, "bold red")]

    def _says(self, actuator: str, value: Value) -> list[tuple[str, str]]:
        """Return what a value would do, the mesh's answer to a person, and its guardrails' to an agent."""
        command = OperatorCommand(id="preview", action="set", actuator=actuator, value=value)
        lines = [(consequences.sentence(self.view, command), "")]
        if not self.view.mesh.whole:
            return [*lines, ("what the mesh would say is known once all of the log is read", "dim")]
        reply, ruling = self.view.mesh.reply(command), self.view.mesh.ruling(actuator, value)
        if reply is not None:
            words = f"the mesh would: {reply.reason}" if reply.done else f"the mesh would refuse: {reply.reason}"
            lines.append((words, "" if reply.done else "bold red"))
        if ruling is not None and reply is not None and reply.done:
            note = ruling.note or "nothing against it"
            over = "; your word overrides that" if ruling.verdict == "rejected" or ruling.note else ""
            lines.append((f"guardrails, if agents asked: {note}{over}", "dim"))
        return lines

    def give(self, command: OperatorCommand) -> None:
        """Send the command and show its progress on its row. Several commands may be under way."""
        assert self.session is not None
        result = CommandResult(self.about.run, command)
        self.view.commands.ask(result)
        if self.shown is not self.view:  # a user who acts wants to see the result
            self.shown = self.view
            self.paint()
        self.decisions().stand_on(command.id)
        self._moved(result)
        self.run_worker(self._send(result), group="commands")

    async def _send(self, result: CommandResult) -> None:
        assert self.session is not None
        await self.session.send(result, self._moved)
        good = result.stage == "done"
        if not (good and self.decisions().stands_on(result.command.id) and len(self.screen_stack) == 1):
            # Where its row is in sight, that says it: a note over the list would hide this row and the next.
            self.notify(
                progress_text(result),
                title=request_text(result.command)[:60],
                severity="information" if good else "warning",
            )
        await asyncio.sleep(STANDS_S)
        self.decisions().leave(result.command.id)

    def _moved(self, _result: CommandResult) -> None:
        """Redraw the list at once, and nothing else: a user who waits for a receipt looks at its row."""
        self.view.commands.moved()
        if self.screen_stack and self.shown is self.view:
            decisions = self.decisions()
            decisions.view = self.view
            decisions.redraw()
