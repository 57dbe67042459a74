"""A training under the controller as a script holds it: run it, swap its judges and teachers, stop it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, Self

from transformers import TrainerCallback

from oven_controller.errors import ConfigError, UnknownNameError
from oven_controller.protocol.messages import Receipt
from oven_controller.settings.model import MemberSettings
from oven_learner.baking import operator_commands, own_stack
from oven_learner.baking.member_choice import chosen, moved
from oven_learner.baking.operator_commands import ANSWER_S, CommandRefusedError
from oven_learner.hf.callback import Attachment
from oven_learner.rewards import Committee
from oven_learner.rewards.committee import WEIGHTS
from oven_learner.teachers import Teachers

TEACHER = "teacher.active"


class Oven:
    """From `bake`. Use it in a `with`, or train to the end, or say `close()`: its own stack ends then.

    Swaps are an operator's commands: signed, logged and answered. Each returns the learner's Receipt, or raises
    CommandRefusedError with the reason. Before training begins a swap says what training begins with, and there is no
    receipt.
    """

    def __init__(
        self,
        attachment: Attachment,
        place: own_stack.Place,
        stack: own_stack.OwnStack | None,
        committee: Committee,
        teachers: Teachers | None,
        members: Mapping[str, MemberSettings],
    ) -> None:
        self.trainer = attachment.trainer
        """For text TRL's GRPOTrainer; `oven.trainer.model` is the model that is trained."""
        self.attachment, self.committee, self.teachers = attachment, committee, teachers
        self.run_name, self.folder = place.run, place.folder
        self.summary = ""
        """What its own stack said at the end."""
        self._stack, self._members = stack, dict(members)
        self.began = threading.Event()
        """Set when training is announced: from here on swaps are commands."""
        self._asked = False
        self.trainer.add_callback(_Announced(self.began))

    def run_sync(self) -> Any:
        """Train to the end, and return what the trainer does. Raises ConfigError in a running event loop, which it
        would block: `await run()` there."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._trained()
        raise ConfigError("an event loop runs here, and run_sync() would block it: say `await oven.run()`")

    async def run(self) -> Any:
        """The same, in a thread. Where it is cancelled, training ends after its running step first."""
        training = asyncio.create_task(asyncio.to_thread(self._trained))
        try:
            return await asyncio.shield(training)
        except asyncio.CancelledError:
            if self.attachment.client is not None:
                self.attachment.client.request_stop("cancelled by the script")
            await training
            raise

    def stop(self, reason: str = "the script said stop") -> Receipt | None:
        """End the training after its running step."""
        return self._command(action="stop", reason=reason)

    def swap_teacher(self, name: str) -> Receipt | None:
        """Make `name` the teacher from the next step on. Raises UnknownNameError."""
        known = self.teachers.names if self.teachers is not None else ()
        if self.teachers is None or name not in known:
            raise UnknownNameError("teacher", name, known)
        if not self._asked:
            self.teachers.swap(name)
            return None
        return self._command(action="set", actuator=TEACHER, value=name)

    def swap_agent(
        self, role: str, *, provider: str | None = None, model: str | None = None, name: str | None = None
    ) -> Receipt | None:
        """Have another member of the committee judge in this role: the one by this `name`, `provider` or `model`, among
        those that the run was configured with. It gets the whole weight of the role. Raises UnknownNameError."""
        return self._weigh({role: chosen(self._members, role, provider, model, name)})

    def swap_all_agents(self, *, provider: str | None = None, model: str | None = None) -> Receipt | None:
        """The same in every role that has such a member. Raises UnknownNameError where none has."""
        roles = dict.fromkeys(member.role for member in self._members.values())
        fitting: dict[str, str] = {}
        for role in roles:
            try:
                fitting[role] = chosen(self._members, role, provider, model, None)
            except UnknownNameError:
                continue
        if not fitting:
            raise UnknownNameError("member of the committee", model or provider or "", self._members)
        return self._weigh(fitting)

    def attach_to_model(self, model: Any) -> None:
        """Set `model.teacher`, the active one, or None."""
        model.teacher = self.teachers.model(self.teachers.active) if self.teachers is not None else None

    def close(self) -> None:
        """End its own stack. A second call does nothing."""
        if self._stack is not None:
            self.summary, self._stack = self._stack.end(), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _trained(self) -> Any:
        self._asked = True
        try:
            return self.trainer.train()
        finally:
            self.close()

    def _weigh(self, fitting: Mapping[str, str]) -> Receipt | None:
        weights = moved(self.committee.weights, self._members, fitting)
        if not self._asked:
            self.committee.set_weights(weights)
            return None
        return self._command(action="set", actuator=WEIGHTS, value=weights)

    def _command(self, **command: Any) -> Receipt | None:
        """What came too early would be of no run: it waits until training has been announced."""
        if not self._asked:
            raise ConfigError(f"training has not begun: {command['action']} has nothing to act on yet")
        if not self.began.wait(ANSWER_S):
            raise CommandRefusedError(f"training was not announced within {ANSWER_S:g} s, so nothing is said to it")
        client = self.attachment.client
        assert client is not None  # it has announced the training
        folder = operator_commands.folder_of(self.folder, self.run_name)
        return operator_commands.said(folder, client.began_after, **command)


class _Announced(TrainerCallback):
    """Sets its event when the training is announced: it comes after the attachment's callback."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._event.set()
