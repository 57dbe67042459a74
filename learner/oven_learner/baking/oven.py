"""The handle of a training that a script runs under the controller: swap judges and teachers, or stop it.

Swaps are operator commands. They are signed, logged and answered like commands from the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from pydantic import ValidationError

from oven_core.errors import ConfigError, OvenError, UnknownNameError, reason
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.judge_spec import JudgeSpec, actuator_of
from oven_core.protocol.messages import Receipt, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.baking.own_stack import OwnStack, StackAddress
from oven_learner.client.client import OvenClient
from oven_learner.rewards import Committee
from oven_learner.rewards.draft_verifier import DraftVerifier
from oven_learner.teachers import TeacherConfig
from oven_learner.teachers.registry import NamedTeachers
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import batches
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.operator_client import RETRY_S, new_command, send_command
from oven_runs.settings.committee_members import check_judge
from oven_runs.settings.committee_settings import CommitteeSettings, MemberSettings

TEACHER = "teacher.active"
ANSWER_S = 60.0
"""Timeout of a command in seconds. The receipt arrives between two steps, and a step may be long."""
Result = TypeVar("Result")


class CommandRefusedError(OvenError):
    """The mesh or the learner rejected a command; the message gives the reason."""

    exit_code = 1


class Training(Protocol):
    """The trainer interface that an Oven needs."""

    @property
    def trainer(self) -> Any:
        """The trainer."""

    @property
    def teachers(self) -> NamedTeachers[Any] | None:
        """The teachers, or None if the training has none."""

    @property
    def client(self) -> OvenClient | None:
        """The client of the running training. None before training starts."""

    def when_announced(self, call: Callable[[], object]) -> None:
        """Register a function to call when the run has been announced."""

    def between_steps(self, call: Callable[[], object]) -> None:
        """Run a function in the training thread after the current step, and wait for it. Re-raises its errors. Raises
        ConfigError if training ends first."""

    def train(self) -> Any:
        """Train to the end."""


class Oven:
    """The handle that `bake` returns. Its own stack ends after training, on `close()`, or at the end of a `with`.

    Each swap returns the learner's Receipt, or raises CommandRefusedError with the reason. Before training starts, a
    swap sets the initial value and returns no receipt.
    """

    def __init__(
        self,
        training: Training,
        address: StackAddress,
        stack: OwnStack | None,
        committee: Committee,
        settings: CommitteeSettings,
        verifier: DraftVerifier | None = None,
    ) -> None:
        self.trainer, self.teachers = training.trainer, training.teachers
        """TRL's GRPOTrainer for text models, otherwise a PolicyTrainer."""
        self.committee, self.verifier = committee, verifier
        self.run_name, self.folder = address.run, address.folder
        self._training = training
        self.summary = ""
        """The final output of this script's own stack."""
        self._stack, self._settings = stack, settings
        self.began = threading.Event()
        """Set when training is announced. From then on, swaps are commands."""
        self._started = False
        self._ended = threading.Event()
        self._cancelled = False
        training.when_announced(self._announced)

    def run_sync(self) -> Any:
        """Train to the end, and return the trainer's result. Raises ConfigError if an event loop is running, because it
        would block the loop; use `await run()` there."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._trained()
        raise ConfigError("run_sync() would block the running event loop; use `await oven.run()`")

    async def run(self) -> Any:
        """Train in a thread. When cancelled, training ends after its current step, and its errors are raised here."""
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
        """Replace the model behind a judge role from the next step on. `name` selects the member if several have the
        role.

        The new model first answers a test question in the member's process, which needs its API key. If it gives no
        verdict, the old model stays, and CommandRefusedError gives the reason. Weight, role and metrics do not change.
        Raises UnknownNameError, and ConfigError for an invalid model.
        """
        names = [member_in(self._settings.judges, role, name)]
        options = {"base_url": base_url, "key_env": key_env, "logprobs": logprobs, "top_logprobs": top_logprobs}
        return self._swap(names, provider, model, options).get(names[0])

    def swap_all_agents(self, *, provider: str, model: str, **options: Any) -> dict[str, Receipt]:
        """Swap the model of every remote member, all or none, with the options of `swap_agent`. Returns one receipt per
        member."""
        if not self._settings.judges:
            raise ConfigError("the committee has no remote members; pass members= to bake()")
        return self._swap([*self._settings.judges], provider, model, options)

    def register_teacher(self, config: TeacherConfig) -> None:
        """Load another teacher and offer it as a choice from the next step on. It does not become active.

        The calling thread loads it while training continues. Between two steps, or while the run is held, it scores a
        probe. There is no timeout, because a step may be long.

        Raises TeacherRefusedError with the reason. Raises ConfigError if this training started without a teacher or has
        ended. Raises BusError if the teacher is loaded but the log is unreachable.
        """
        teachers = self.teachers
        if teachers is None or not len(teachers):
            raise ConfigError(f"teacher {config.name!r} needs a training with a teacher; pass teachers= to bake()")
        if not self._started:
            teachers.register(config)
            return
        self._folder()  # fail before anything changes
        candidate = teachers.prepare(config.name, config, beside_training=True)
        self._training.between_steps(partial(teachers.admit, candidate))

        def offers(body: object) -> bool:
            if not isinstance(body, ActuatorAnnounced):
                return False
            return body.actuator.name == TEACHER and config.name in body.actuator.choices

        in_thread(wait_for(*self._position_in_log(), offers, None, self._ended.is_set))

    def attach_to_model(self, model: Any) -> None:
        """Set `model.teacher` to the active teacher and `model.verifier` to the verifier, or to None if missing."""
        model.verifier = self.verifier
        taught = self.teachers is not None and len(self.teachers)
        model.teacher = self.teachers[self.teachers.active] if self.teachers is not None and taught else None

    def close(self) -> None:
        """End this script's own stack. Further calls do nothing."""
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

    def _swap(self, names: list[str], provider: str, model: str, options: Mapping[str, Any]) -> dict[str, Receipt]:
        """Swap the model of these members, all or none."""
        try:
            judge = JudgeSpec(provider=provider, model=model, **options)
        except ValidationError as error:
            raise ConfigError(f"the judge {provider}/{model} cannot be asked: {reason(error)}") from None
        for name in names:
            check_judge(self._settings, name, judge)
        if not self._started:
            self._start_with(names, judge)
            return {}
        limit_s = ANSWER_S + (self.committee.remote.deadline_s if self.committee.remote else 0.0)
        for name in names:
            self._command(limit_s=limit_s, action="offer", actuator=actuator_of(name), judge=judge)
        receipts: dict[str, Receipt] = {}
        for name in names:
            receipt = self._command(action="set", actuator=actuator_of(name), value=judge.identity)
            assert receipt is not None  # an executed choice has a receipt
            receipts[name] = receipt
        return receipts

    def _start_with(self, names: list[str], judge: JudgeSpec) -> None:
        """Before training, probe the model in each member's process, and use it if all probes succeed."""
        remote = self.committee.remote
        assert remote is not None  # it has the members
        probes = {name: remote.probe(name, judge) for name in names}
        for name, probe in probes.items():
            try:
                refused = probe.result(timeout=2 * remote.deadline_s)
            except TimeoutError:
                refused = "the probe timed out"
            if refused:
                raise CommandRefusedError(f"{name} keeps {self.committee.judges.active(name)}: {refused}")
        for name in names:
            self.committee.choose_judge(name, self.committee.judges.offer(name, judge))

    def _command(self, limit_s: float = ANSWER_S, **command: Any) -> Receipt | None:
        """Execute a command, and wait for its result in the log. Returns the learner's receipt, or None for an action
        without one. Waits until training is announced, because an earlier command would affect no run.

        Raises CommandRefusedError with the reason, and BusError if no result appears in time.
        """
        if not self._started:
            raise ConfigError(f"training has not started, so {command['action']} has no effect yet")
        if self._ended.is_set():
            raise CommandRefusedError(f"training has ended, so {command['action']} has no effect any more")
        if not self.began.wait(ANSWER_S):
            raise CommandRefusedError(f"training was not announced within {ANSWER_S:g} s, so the command was not sent")
        result = in_thread(send(*self._position_in_log(), new_command(**command), limit_s, self._ended.is_set))
        if result.code:
            raise CommandRefusedError(result.line())
        return result.receipt

    def _folder(self) -> Path:
        """Return the run's folder. Raises ConfigError if it is not on this machine, because it contains the operator's
        key."""
        if not self.folder.is_dir():
            raise ConfigError(
                f"run {self.run_name!r} has no folder on this machine (OVEN_RUN_DIR), which contains the operator's "
                "key; run `oven-controller set …` where the stack runs"
            )
        return self.folder

    def _position_in_log(self) -> tuple[LocalRun, int]:
        """Return the run, and a log sequence number before this training's announcement."""
        client = self._training.client
        assert client is not None  # it has announced the training
        return LocalRun(RunFolder(self._folder())), client.began_after


def member_in(members: Mapping[str, MemberSettings], role: str, name: str | None) -> str:
    """Return the member named `name`, or the only one with this role.

    Raises UnknownNameError if there is none, and ConfigError if there are several.
    """
    if name is not None:
        if name not in members:
            raise UnknownNameError("member of the committee", name, members)
        return name
    candidates = [key for key, member in members.items() if member.role == role]
    if not candidates:
        raise UnknownNameError("role", role, {member.role for member in members.values()})
    if len(candidates) > 1:
        raise ConfigError(
            f"{', '.join(candidates)} judge as {role}; choose one, swap_agent({role!r}, name={candidates[0]!r}, …)"
        )
    return candidates[0]


def in_thread(work: Coroutine[Any, Any, Result]) -> Result:
    """Run the work in its own thread, because the calling thread may already run an event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="oven-operator") as thread:
        return thread.submit(asyncio.run, work).result()


async def send(
    run: LocalRun, after: int, command: OperatorCommand, limit_s: float, ended: Callable[[], bool]
) -> CommandResult:
    """Execute a command once the log has a training's announcement after `after`, or stop waiting when training
    ends."""
    await wait_for(run, after, lambda body: isinstance(body, RunStarted), limit_s, ended)
    return await send_command(run, command, limit_s, ended)


async def wait_for(
    run: LocalRun,
    after: int,
    matches: Callable[[object], bool],
    limit_s: float | None,
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Return when the log has a matching message after `after`, or when `ended` is true. Raises BusError."""
    async with asyncio.timeout(limit_s), run.connect("operator") as bus:
        while not ended():
            async for batch in batches(bus, run.run, after):
                if any(matches(event.body) for event in batch):
                    return
                after = batch[-1].seq
            await asyncio.sleep(RETRY_S)
