"""A training under the controller as a script holds it: run it, swap its judges and teachers, stop it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.judge_spec import JudgeSpec
from oven_core.protocol.messages import Receipt
from oven_learner.baking import judge_swaps, operator_commands, own_stack
from oven_learner.baking.operator_commands import ANSWER_S, CommandRefusedError
from oven_learner.client.client import OvenClient
from oven_learner.rewards import Committee
from oven_learner.rewards.draft_verifier import DraftVerifier
from oven_learner.teachers import TeacherConfig
from oven_learner.teachers.named_teachers import NamedTeachers
from oven_runs.settings.committee_members import check_judge
from oven_runs.settings.committee_settings import CommitteeSettings

TEACHER = "teacher.active"


class Training(Protocol):
    """What an Oven needs of a trainer."""

    @property
    def trainer(self) -> Any:
        """The trainer itself."""

    @property
    def teachers(self) -> NamedTeachers[Any] | None:
        """None where it is held to nothing."""

    @property
    def client(self) -> OvenClient | None:
        """The client of the training under way; None before."""

    def when_announced(self, call: Callable[[], object]) -> None:
        """Have this called when the run was announced."""

    def between_steps(self, call: Callable[[], object]) -> None:
        """Call it in the training's thread after the running step, and wait for that. Raises what it raised, and
        ConfigError where training ends first."""

    def train(self) -> Any:
        """To the end."""


class Oven:
    """From `bake`. Use it in a `with`, or train to the end, or say `close()`: its own stack ends then.

    Swaps are an operator's commands: signed, logged and answered. Each returns the learner's Receipt, or raises
    CommandRefusedError with the reason. Before training begins a swap says what training begins with, and there is no
    receipt.
    """

    def __init__(
        self,
        training: Training,
        place: own_stack.Place,
        stack: own_stack.OwnStack | None,
        committee: Committee,
        settings: CommitteeSettings,
        verifier: DraftVerifier | None = None,
    ) -> None:
        self.trainer, self.teachers = training.trainer, training.teachers
        """For text TRL's GRPOTrainer, else a PolicyTrainer."""
        self.committee, self.verifier = committee, verifier
        self.run_name, self.folder = place.run, place.folder
        self._training = training
        self.summary = ""
        """What its own stack said at the end."""
        self._stack, self._settings = stack, settings
        self.began = threading.Event()
        """Set when training is announced: from here on swaps are commands."""
        self._asked = False
        self._ended = threading.Event()
        self._cancelled = False
        training.when_announced(self._announced)

    def run_sync(self) -> Any:
        """Train to the end, and return what the trainer does. Raises ConfigError in a running event loop, which it
        would block: `await run()` there."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._trained()
        raise ConfigError("an event loop runs here, and run_sync() would block it: say `await oven.run()`")

    async def run(self) -> Any:
        """The same, in a thread. Where it is cancelled, training ends after its running step first, and what it raises
        then is raised here."""
        training = asyncio.create_task(asyncio.to_thread(self._trained))
        try:
            return await asyncio.shield(training)
        except asyncio.CancelledError:
            self._cancelled = True
            self._stop_if_cancelled()
            while not training.done():
                with contextlib.suppress(asyncio.CancelledError):  # once more: it is ending already
                    await asyncio.wait([training])
            training.result()
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
        self,
        role: str,
        *,
        provider: str,
        model: str,
        base_url: str = "",
        key_env: str = "",
        logprobs: bool = False,
        top_logprobs: int = 5,
        name: str | None = None,
    ) -> Receipt | None:
        """Have another model judge in this role from the next step on; `name` says which member where several do. It
        is asked a question first, in the member's process, which must have the key: where it gives no verdict the one
        before stays, and CommandRefusedError says why. Weight, role and metrics stay. Raises UnknownNameError, and
        ConfigError for what cannot be asked at all."""
        names = [judge_swaps.member_in(self._settings.judges, role, name)]
        options = {"base_url": base_url, "key_env": key_env, "logprobs": logprobs, "top_logprobs": top_logprobs}
        return self._swap(names, judge_swaps.model_of(provider, model, **options)).get(names[0])

    def swap_all_agents(self, *, provider: str, model: str, **options: Any) -> dict[str, Receipt]:
        """The same of every remote member, all or none, with the options of `swap_agent`: a receipt each."""
        if not self._settings.judges:
            raise ConfigError("the committee has no remote members: give bake() members=")
        return self._swap([*self._settings.judges], judge_swaps.model_of(provider, model, **options))

    def register_teacher(self, config: TeacherConfig) -> None:
        """Load another teacher, and have it as a choice from the next step on, without choosing it. This thread loads
        it while training continues; between two steps, or while the run is held, it scores a probe. That has no time
        limit: a step may be long.

        Raises TeacherRefusedError with the reason; ConfigError where this training began without a teacher to be held
        to, or has ended; BusError where the teacher is there, and the log cannot be asked whether it is announced.
        """
        teachers = self.teachers
        if teachers is None or not len(teachers):
            raise ConfigError(f"teacher {config.name!r} has nothing to stand in for: give bake() one to begin with")
        if not self._asked:
            teachers.register(config)
            return
        operator_commands.folder_of(self.folder, self.run_name)  # where there is none, before anything has changed
        candidate = teachers.prepare(config.name, config, beside_training=True)
        self._training.between_steps(partial(teachers.admit, candidate))
        operator_commands.offered(*self._place_in_log(), TEACHER, config.name, self._ended.is_set)

    def attach_to_model(self, model: Any) -> None:
        """Set `model.teacher`, the active one, and `model.verifier`; None where there is none."""
        model.verifier = self.verifier
        model.teacher = (
            self.teachers[self.teachers.active] if self.teachers is not None and len(self.teachers) else None
        )

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
        self._ended.clear()
        try:
            return self._training.train()
        finally:
            self._ended.set()
            self.close()

    def _announced(self) -> None:
        self.began.set()
        self._stop_if_cancelled()

    def _stop_if_cancelled(self) -> None:
        if self._cancelled and self._training.client is not None:
            self._training.client.request_stop("cancelled by the script")

    def _swap(self, names: list[str], model: JudgeSpec) -> dict[str, Receipt]:
        for name in names:
            check_judge(self._settings, name, model)
        if not self._asked:
            judge_swaps.begun_with(self.committee, names, model)
            return {}
        remote = self.committee.remote
        return judge_swaps.swapped(self._command, names, model, ANSWER_S + (remote.deadline_s if remote else 0.0))

    def _command(self, **command: Any) -> Receipt | None:
        """What came too early would be of no run: it waits until training has been announced."""
        if not self._asked:
            raise ConfigError(f"training has not begun: {command['action']} has nothing to act on yet")
        if not self.began.wait(ANSWER_S):
            raise CommandRefusedError(f"training was not announced within {ANSWER_S:g} s, so nothing is said to it")
        return operator_commands.said(*self._place_in_log(), **command)

    def _place_in_log(self) -> tuple[Path, int]:
        """The run's folder, and a sequence of the log before this training's announcement."""
        client = self._training.client
        assert client is not None  # it has announced the training
        return operator_commands.folder_of(self.folder, self.run_name), client.began_after
