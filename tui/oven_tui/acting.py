"""The monitor's commands that act on the run: each is asked once, given under the person's key, and followed to its
receipt. A monitor without `--control` has none of it, and says so.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from textual.app import App
from textual.events import Key

from oven_controller.log.command_result import CommandResult
from oven_controller.protocol.actions import CHECKPOINT, ROLLBACK, UNDO
from oven_controller.protocol.events import Event
from oven_controller.protocol.messages import Value
from oven_controller.protocol.operator_messages import OperatorCommand
from oven_tui.model import choices, consequences
from oven_tui.model.commands import COMMANDS
from oven_tui.model.decisions import Decided, Open
from oven_tui.model.knob_edit import KnobEdit
from oven_tui.model.mesh_state import MeshState
from oven_tui.model.monitor_view import MonitorView
from oven_tui.screens.choice import ChoiceScreen
from oven_tui.screens.confirm import ConfirmScreen
from oven_tui.screens.knob import KnobScreen
from oven_tui.widgets.decision_list import Decisions
from oven_tui.widgets.header import About

READS_ONLY = "this monitor only reads: `oven-controller monitor --control` acts on the run"
ACTING_KEYS = {key: command.words for command in COMMANDS if command.acts for key in command.key_names()}
ACTING = {command.action.partition("(")[0] for command in COMMANDS if command.acts}

if TYPE_CHECKING:
    from oven_tui.operator_session import OperatorSession

    _Base = App[None]
else:
    _Base = object


class Acting(_Base):
    """Mixed into the application, which has `view` and `paint`."""

    view: MonitorView
    about: About
    session: OperatorSession | None = None
    """None: nothing acts."""
    mesh: MeshState | None = None
    """What the mesh would say; followed only where something acts."""

    def control(self, session: OperatorSession) -> None:
        """Let the person act, as far as their key lets them."""
        self.session, self.mesh = session, MeshState()
        self.refresh_bindings()

    def follow(self, events: list[Event]) -> None:
        """What the mesh would say rests on the whole log."""
        if self.mesh is not None:
            for event in events:
                self.mesh.feed(event)

    def paint(self) -> None:
        raise NotImplementedError

    def barred(self) -> str:
        """Why nothing acts; empty where it does."""
        if self.session is None:
            return READS_ONLY
        return self.session.refused

    def refused(self, why: str) -> None:
        """The key turned out to command nothing."""
        self.notify(why, title="this key only reads", severity="warning", timeout=15)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Commands that act are neither in the footer nor in the palette where none does."""
        return not (action in ACTING and self.barred())

    def on_key(self, event: Key) -> None:
        """A key that would act, and does not: why."""
        key = event.key if event.key in ACTING_KEYS else event.character or ""
        if key in ACTING_KEYS and len(self.screen_stack) == 1 and (why := self.barred()):
            self.notify(why, title=f"{ACTING_KEYS[key]}: not here", severity="warning")

    # ---- what is chosen

    def action_approve(self) -> None:
        entry = self.query_one(Decisions).chosen()
        if isinstance(entry, Decided) and entry.decision.verdict == "advised":
            self._ask("approve this advice?", action="approve", of=entry.decision.id)
            return
        waiting = choices.advised(self.view)
        if not waiting:
            self.notify("nothing is advised now: agents' advice waits here when `o` sets a knob to advise")
            return
        self._dialog(self._approve_one(waiting))

    async def _approve_one(self, waiting: list[choices.Choice]) -> None:
        if (of := await self._choose("approve which advice?", waiting)) is not None:
            await self._question("approve this advice?", action="approve", of=of)

    def action_veto(self) -> None:
        entry = self.query_one(Decisions).chosen()
        if isinstance(entry, Open):
            self._ask("veto this ballot?", action="veto", of=entry.opened.id)
        elif isinstance(entry, Decided) and entry.decision.verdict == "advised":
            self._ask("veto this advice?", action="veto", of=entry.decision.id)
        elif waiting := choices.vetoable(self.view):
            self._dialog(self._veto_one(waiting))
        else:
            self.notify("no ballot is open and nothing is advised: there is nothing to veto; `e` sets a knob back")

    async def _veto_one(self, waiting: list[choices.Choice]) -> None:
        if (of := await self._choose("veto which?", waiting)) is not None:
            await self._question("veto it?", action="veto", of=of)

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
            self._dialog(self._roll_back())

    async def _roll_back(self) -> None:
        to = await self._choose("roll back to", choices.snapshots(self.view))
        if to is None:
            return
        if to == choices.OTHER:
            await self._set(ROLLBACK)
            return
        value = None if to == choices.NEWEST else float(to)
        await self._question("roll back?", action="set", actuator=ROLLBACK, value=value)

    def action_set_knob(self) -> None:
        self._dialog(self._set_one())

    async def _set_one(self) -> None:
        entry, knobs = self.query_one(Decisions).chosen(), choices.knobs(self.view)
        if not knobs:
            self.notify("this run announces no knob that can be set")
            return
        on = entry.decision.actuator if isinstance(entry, Decided) else ""
        knobs.sort(key=lambda choice: choice.id != on)
        if (name := await self._choose("set which knob?", knobs)) is not None:
            await self._set(name)

    async def _set(self, actuator: str) -> None:
        """Its new value; the page names the consequence, so that is asked once."""
        spec = consequences.spec_of(self.view, actuator)
        if spec is None:
            return
        screen = KnobScreen(
            KnobEdit(spec, self.view.run.knobs.get(actuator)), lambda value: self._says(actuator, value)
        )
        value = await self.push_screen_wait(screen)
        if value is not False:
            self.give(OperatorCommand(id=_new_id(), action="set", actuator=actuator, value=value))

    def action_mute(self) -> None:
        self._dialog(self._mute())

    async def _mute(self) -> None:
        agent = await self._choose("mute or unmute which agent?", choices.agents(self.view, "mute"))
        if agent is not None:
            action = "unmute" if agent in self.view.run.muted else "mute"
            await self._question(f"{action} {agent}?", action=action, agent=agent)

    def action_trust(self, trusted: bool) -> None:
        self._dialog(self._trust("trust" if trusted else "distrust"))

    async def _trust(self, action: str) -> None:
        agent = await self._choose(f"{action} which agent?", choices.agents(self.view, action))
        if agent is None:
            return
        on = await self._choose(f"{action} {agent} with", choices.trusted_with(self.view))
        if on is not None:
            named = (on,) if on != choices.ANY else ()
            await self._question(f"{action} {agent}?", action=action, agent=agent, actuators=named)

    def action_autonomy(self) -> None:
        self._dialog(self._autonomy())

    async def _autonomy(self) -> None:
        on = await self._choose("autonomy of", choices.autonomies(self.view))
        if on is None:
            return
        level = await self._choose(f"autonomy of {on or 'every actuator'}", choices.levels())
        if level is not None:
            await self._question("change the autonomy?", action="autonomy", actuator=on, autonomy=level)

    # ---- how it is asked

    def _announced(self, actuator: str) -> bool:
        if actuator in choices.actions(self.view):
            return True
        self.notify(f"this run announces no {actuator}: its learner keeps nothing for it", severity="warning")
        return False

    def _dialog(self, dialog: Any) -> None:
        self.run_worker(dialog, group="dialog", exclusive=True)

    async def _choose(self, title: str, among: list[choices.Choice]) -> str | None:
        return await self.push_screen_wait(ChoiceScreen(title, among))

    def _ask(self, title: str, **command: Any) -> None:
        self._dialog(self._question(title, **command))

    async def _question(self, title: str, **fields: Any) -> None:
        """Ask once, and give the command."""
        command = OperatorCommand(id=_new_id(), **fields)
        reason = await self.push_screen_wait(ConfirmScreen(title, lambda: self._weighed(command)))
        if reason is not None:
            self.give(command.model_copy(update={"reason": reason}))

    def _weighed(self, command: OperatorCommand) -> tuple[str, str]:
        """The consequence, and what the mesh would say against it now."""
        reply = self.mesh.reply(command) if self.mesh is not None else None
        against = f"the mesh would refuse: {reply.reason}" if reply is not None and not reply.done else ""
        return consequences.sentence(self.view, command), against

    def _says(self, actuator: str, value: Value) -> list[tuple[str, str]]:
        """What a value would do, what the mesh would answer a person, and what its guardrails would answer agents."""
        command = OperatorCommand(id="preview", action="set", actuator=actuator, value=value)
        lines = [("", ""), (consequences.sentence(self.view, command), "")]
        if self.mesh is None:
            return lines
        reply, ruling = self.mesh.reply(command), self.mesh.ruling(actuator, value)
        if reply is not None:
            words = f"the mesh would: {reply.reason}" if reply.done else f"the mesh would refuse: {reply.reason}"
            lines.append((words, "" if reply.done else "bold red"))
        if ruling is not None and reply is not None and reply.done:
            note = ruling.note or "nothing against it"
            over = "; your word overrides that" if ruling.verdict == "rejected" or ruling.note else ""
            lines.append((f"guardrails, if agents asked: {note}{over}", "dim"))
        return lines

    def give(self, command: OperatorCommand) -> None:
        """Send it, and show how far it comes on its row. Others may be under way."""
        assert self.session is not None
        result = CommandResult(self.about.run, command)
        self.view.given.ask(result)
        self.query_one(Decisions).follows = True  # its row is the last
        self.paint()
        self.run_worker(self.session.send(result, self._moved), group="commands", exit_on_error=False)

    def _moved(self, _result: CommandResult) -> None:
        """Drawn at once: whoever waits for a receipt looks at the row."""
        self.view.given.moved()
        self.paint()


def _new_id() -> str:
    return uuid.uuid4().hex
