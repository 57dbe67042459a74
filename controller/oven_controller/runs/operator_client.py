"""Client of an operator's commands: into the log, and back from there the answer."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg

from oven_controller.bus.connection import Bus
from oven_controller.errors import BusError, RefusedError
from oven_controller.log.run_summary import text
from oven_controller.protocol import names
from oven_controller.protocol.codec import Malformed
from oven_controller.protocol.events import UNKNOWN, Event
from oven_controller.protocol.messages import Decision, LogMessage, Receipt
from oven_controller.protocol.operator_messages import TO_LEARNER, CommandAnswer, OperatorCommand
from oven_controller.runs.log_sources import history
from oven_controller.runs.run_access import RunAccess

AGAIN_S = 0.1


@dataclass
class Result:
    """What the log has said of a command so far."""

    run: str
    command: OperatorCommand
    limit_s: float
    logged: int = 0
    """Sequence of the command itself."""
    answer: CommandAnswer | None = None
    decision: Decision | None = None
    receipts: list[Receipt] = field(default_factory=list)
    """All that came meanwhile: each subject has its own queue, so a receipt may overtake its decision."""

    def take(self, body: LogMessage | Malformed) -> None:
        match body:
            case CommandAnswer() if body.command == self.command.id:
                self.answer = body
            case Decision() if body.command == self.command.id:
                self.decision = body
            case Receipt():
                self.receipts.append(body)
            case _:
                pass

    @property
    def receipt(self) -> Receipt | None:
        """The command's own, or that of the decision which it led to."""
        led_to = self.decision.id if self.decision is not None else None
        mine = (one for one in self.receipts if one.command == self.command.id or one.decision_id == led_to)
        return next(mine, None)

    @property
    def whole(self) -> bool:
        """Whether nothing more is to be waited for."""
        if self.command.action in TO_LEARNER:
            return self.receipt is not None
        if self.answer is None:
            return False
        return self.receipt is not None or not (self.answer.done and self.command.action in ("set", "approve"))

    @property
    def code(self) -> int:
        """The exit code: 0 done, 1 the answer is no, 3 the log has not said."""
        if not self.whole:
            return 3
        if self.answer is not None and not self.answer.done:
            return 1
        return 1 if self.receipt is not None and self.receipt.status not in ("applied", "noop") else 0

    def line(self) -> str:
        """One line for people."""
        action, answer, receipt = self.command.action, self.answer, self.receipt
        if not self.whole:
            return f"{action}: {self._lacking()}"
        if answer is not None and not answer.done:
            return f"{action}: refused: {answer.reason}"
        if receipt is None:
            assert answer is not None
            return f"{action}: {answer.reason}"
        why = f": {receipt.reason}" if receipt.reason else ""
        at = f"at step {receipt.step}{why}"
        if action in TO_LEARNER:
            return f"{action}: {receipt.status} {at}"
        change = f"{receipt.actuator} {text(receipt.before)} → {text(receipt.after)}"
        beside = f" ({answer.reason})" if answer is not None and "although" in answer.reason else ""
        return f"{action}: {receipt.status}, {change} {at}{beside}"

    def _lacking(self) -> str:
        limit = f"within {self.limit_s:g} s"
        logged = f"logged as event {self.logged} of {self.run}"
        slow = "it comes at the end of a step, which may last longer"
        if self.command.action in TO_LEARNER:
            return f"{logged}; no receipt from the learner {limit}: {slow}"
        if self.answer is None:
            later = f"it counts as soon as a mesh reads it; `oven-controller status {self.run}` shows whether one runs"
            return f"{logged}; no answer from the mesh {limit}: {later}"
        return f"{logged}, decision {self.answer.decision} too; no receipt from the learner {limit}: {slow}"

    def fields(self) -> dict[str, Any]:
        """The same for scripts."""
        parts = {"answer": self.answer, "decision": self.decision, "receipt": self.receipt}
        return {
            "run": self.run,
            "command": self.command.id,
            "action": self.command.action,
            "logged": self.logged,
            "code": self.code,
            **{name: part.model_dump(mode="json") if part is not None else None for name, part in parts.items()},
        }


async def carried_out(access: RunAccess, command: OperatorCommand, limit_s: float) -> Result:
    """Log the command, and wait at most `limit_s` for what becomes of it.

    What is heard on its way into the log counts: a hold has to work without the mesh, and without it there is no
    `history`. It counts if it is signed by whom it should be. Raises RefusedError where the key may not command,
    BusError when the command does not get into the log within the limit.
    """
    result, news = Result(access.run, command, limit_s), asyncio.Event()
    on = names.Subjects(access.run)

    async def hear(message: Msg) -> None:
        said = Event.carried(0, message.subject, message.data, UNKNOWN, message.headers)
        result.take(keyring.verify(said).body)
        news.set()

    async with access.connected("operator") as bus:
        keyring = await access.keyring_now(bus)
        for subject in (on.decision("*"), on.answer("*"), on.receipt):
            await bus.subscribe(subject, hear)
        await bus.flush()
        deadline = asyncio.get_running_loop().time() + limit_s
        result.logged = await _logged(bus, on.operator(access.by), command, deadline, limit_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while not result.whole:
                    await news.wait()
                    news.clear()
        if not result.whole:  # a connection that was lost and made anew has missed what was said meanwhile
            with contextlib.suppress(BusError, TimeoutError):
                async with asyncio.timeout(1):
                    for event in await history(bus, access.run, result.logged):
                        result.take(keyring.verify(event).body)
    return result


async def _logged(bus: Bus, subject: str, command: OperatorCommand, deadline: float, limit_s: float) -> int:
    """The sequence that the command got."""
    why = "no answer"
    while asyncio.get_running_loop().time() < deadline:
        try:
            async with asyncio.timeout_at(deadline):
                return await bus.append(subject, command.wire(), message_id=command.id)
        except BusError as error:
            if any("permissions violation" in said.lower() for said in bus.errors):
                raise RefusedError(
                    f"the key of {bus.name!r} may not {command.action}: it is not an operator's of this run; ask for "
                    "one by `oven-controller creds add NAME --operator`"
                ) from error
            why = str(error)
            await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            break
    raise BusError(f"{command.action} is not in the log after {limit_s:g} s ({why})")
