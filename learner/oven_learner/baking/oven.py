"""A training under the controller for scripts: run it, swap its judges and teachers, stop it."""

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
from oven_learner.baking import operator_commands, own_stack
from oven_learner.baking.operator_commands import ANSWER_S, CommandRefusedError
from oven_learner.client.client import OvenClient
from oven_learner.rewards import Committee
from oven_learner.rewards.draft_verifier import DraftVerifier
from oven_learner.teachers import TeacherConfig
from oven_learner.teachers.registry import NamedTeachers
from oven_runs.settings.committee_members import check_judge
from oven_runs.settings.committee_settings import CommitteeSettings

TEACHER = "teacher.active"


class Training(Protocol):
    """The trainer interface that an Oven needs."""

    @property
    def trainer(self) -> Any:
        """The trainer itself."""

    @property
    def teachers(self) -> NamedTeachers[Any] | None:
        """None if the training has no teachers."""

    @property
    def client(self) -> OvenClient | None:
        """The client of the running training; None before it starts."""

    def when_announced(self, call: Callable[[], object]) -> None:
        """Register a function to call when the run is announced."""

    def between_steps(self, call: Callable[[], object]) -> None:
        """Call it in the training's thread after the current step, and wait for it. Re-raises its errors; raises
        ConfigError if training ends first."""

    def train(self) -> Any:
        """Train to the end."""


class Oven:
    """The handle that `bake` returns. Its own stack ends after training, on `close()`, or at the end of a `with`.

    Swaps are operator commands: signed, logged and answered. Each returns the learner's Receipt, or raises
    CommandRefusedError with the reason. Before training starts, a swap sets the initial value and returns no receipt.
    """

    def __init__(
        self,
        training: Training,
        address: own_stack.StackAddress,
        stack: own_stack.OwnStack | None,
        committee: Committee,
        settings: CommitteeSettings,
        verifier: DraftVerifier | None = None,
    ) -> None:
        self.trainer, self.teachers = training.trainer, training.teachers
        """For text TRL's GRPOTrainer, else a PolicyTrainer."""
        self.committee, self.verifier = committee, verifier
        self.run_name, self.folder = address.run, address.folder
        self._training = training
        self.summary = ""
        """The final output of its own stack."""
        self._stack, self._settings = stack, settings
        self.began = threading.Event()
        """Set when training is announced. From then on swaps are commands."""
        self._started = False
        self._ended = threading.Event()
        self._cancelled = False
        training.when_announced(self._announced)

    def run_sync(self) -> Any:
        """Train to the end, and return the trainer's result. Raises ConfigError in a running event loop, which it would
        block; use `await run()` there."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._trained()
        raise ConfigError("run_sync() would block the running event loop; use `await oven.run()`")

    async def run(self) -> Any:
        """Train in a thread. If cancelled, training ends after its current step, and its errors are raised here."""
        training = asyncio.create_task(asyncio.to_thread(self._trained))
        try:
            return await asyncio.shield(training)
        except asyncio.CancelledError:
            self._cancelled = True
            self._stop_if_cancelled()
            while not training.done():
                with contextlib.suppress(asyncio.CancelledError):  # it is already ending
                    await asyncio.wait([training])
            training.result()
            raise

    def stop(self, reason: str = "stopped by the script") -> Receipt | None:
        """End the training after its current step."""
        return self._command(action="stop", reason=reason)

    def swap_teacher(self, name: str) -> Receipt | None:
        """Make `name` the teacher from the next step on. Raises UnknownNameError."""
        names = self.teachers.names if self.teachers is not None else ()
        if self.teachers is None or name not in names:
            raise UnknownNameError("teacher", name, names)
        if not self._started:
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
        """Let another model judge in this role from the next step on. `name` selects the member if several have the
        role.

        The model first answers a test question in the member's process, which needs its API key. If it gives no
        verdict, the old model stays, and CommandRefusedError gives the reason. Weight, role and metrics stay. Raises
        UnknownNameError, and ConfigError for an invalid model.
        """
        names = [operator_commands.member_in(self._settings.judges, role, name)]
        options = {"base_url": base_url, "key_env": key_env, "logprobs": logprobs, "top_logprobs": top_logprobs}
        return self._swap(names, operator_commands.model_of(provider, model, **options)).get(names[0])

    def swap_all_agents(self, *, provider: str, model: str, **options: Any) -> dict[str, Receipt]:
        """Swap the model of every remote member, all or none, with the options of `swap_agent`. Returns a receipt
        each."""
        if not self._settings.judges:
            raise ConfigError("the committee has no remote members; pass members= to bake()")
        return self._swap([*self._settings.judges], operator_commands.model_of(provider, model, **options))

    def register_teacher(self, config: TeacherConfig) -> None:
        """Load another teacher and offer it as a choice from the next step on, without choosing it.

        This thread loads it while training continues. Between two steps, or while the run is held, it scores a probe.
        There is no timeout, because a step may be long.

        Raises TeacherRefusedError with the reason. Raises ConfigError if this training started without a teacher or has
        ended. Raises BusError if the teacher is loaded but the log is unreachable.
        """
        teachers = self.teachers
        if teachers is None or not len(teachers):
            raise ConfigError(f"teacher {config.name!r} needs a training with a teacher; pass teachers= to bake()")
        if not self._started:
            teachers.register(config)
            return
        operator_commands.folder_of(self.folder, self.run_name)  # fail before anything changes
        candidate = teachers.prepare(config.name, config, beside_training=True)
        self._training.between_steps(partial(teachers.admit, candidate))
        operator_commands.wait_for_choice(*self._position_in_log(), TEACHER, config.name, self._ended.is_set)

    def attach_to_model(self, model: Any) -> None:
        """Set `model.teacher`, the active one, and `model.verifier`; None if missing."""
        model.verifier = self.verifier
        model.teacher = (
            self.teachers[self.teachers.active] if self.teachers is not None and len(self.teachers) else None
        )

    def close(self) -> None:
        """End its own stack. Further calls do nothing."""
        if self._stack is not None:
            self.summary, self._stack = self._stack.end(), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _trained(self) -> Any:
        self._started = True
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
        if not self._started:
            operator_commands.start_with(self.committee, names, model)
            return {}
        remote = self.committee.remote
        return operator_commands.swap_all(
            self._command, names, model, ANSWER_S + (remote.deadline_s if remote else 0.0)
        )

    def _command(self, **command: Any) -> Receipt | None:
        """Send a command. Waits until training is announced: an earlier command would affect no run."""
        if not self._started:
            raise ConfigError(f"training has not started, so {command['action']} has no effect yet")
        if not self.began.wait(ANSWER_S):
            raise CommandRefusedError(f"training was not announced within {ANSWER_S:g} s, so the command was not sent")
        return operator_commands.send_command(*self._position_in_log(), **command)

    def _position_in_log(self) -> tuple[Path, int]:
        """Return the run's folder, and a log sequence number before this training's announcement."""
        client = self._training.client
        assert client is not None  # it has announced the training
        return operator_commands.folder_of(self.folder, self.run_name), client.began_after
