"""The handle that `bake` returns, with which a script swaps judges and teachers or stops the training.

These calls are operator commands. They are signed, logged and answered like commands from the command line.
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
from oven_learner.baking.child_stack import ChildStack, StackAddress
from oven_learner.client.oven_client import OvenClient
from oven_learner.rewards import Committee
from oven_learner.rewards.draft_verifier import DraftVerifier
from oven_learner.teachers import TeacherConfig
from oven_learner.teachers.registry import NamedTeachers
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import read_batches
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.command_result import CommandResult
from oven_runs.operator.operator_client import RETRY_S, execute_command, new_command
from oven_runs.settings.committee_members import check_judge
from oven_runs.settings.committee_settings import CommitteeSettings, MemberSettings

TEACHER_KNOB = "teacher.active"
COMMAND_TIMEOUT_S = 60.0
"""Timeout of a command in seconds. The learner only answers between two steps, and a step may be long."""
Result = TypeVar("Result")


class CommandRefusedError(OvenError):
    """The mesh or the learner rejected a command. The message contains the reason."""

    exit_code = 1


class Training(Protocol):
    """The interface that an Oven needs from a training run."""

    @property
    def trainer(self) -> Any:
        """TRL's GRPOTrainer for text models, otherwise a PolicyTrainer."""

    @property
    def teachers(self) -> NamedTeachers[Any] | None:
        """The teachers, or None if the training run has none."""

    @property
    def client(self) -> OvenClient | None:
        """The client of the training run, or None before training starts."""

    def set_announcement_callback(self, call: Callable[[], object]) -> None:
        """Register a function to call once the run is announced."""

    def run_between_steps(self, call: Callable[[], object]) -> None:
        """Run a function in the training thread after the current step, and wait for it. Re-raises its errors. Raises
        ConfigError if training ends first."""

    def train(self) -> Any:
        """Train to the end."""


class Oven:
    """The handle that `bake` returns. If the script started its own stack, the stack ends after training, on `close()`,
    or at the end of a `with` block. Each swap returns the learner's Receipt, or raises CommandRefusedError with the
    reason. Before training starts, a swap sets the initial value and returns None."""

    def __init__(
        self,
        training: Training,
        address: StackAddress,
        stack: ChildStack | None,
        committee: Committee,
        settings: CommitteeSettings,
        verifier: DraftVerifier | None = None,
    ) -> None:
        self.trainer, self.teachers = training.trainer, training.teachers
        self.committee, self.verifier = committee, verifier
        self.run_name, self.folder = address.run, address.folder
        self._training = training
        self.summary = ""
        """The final output of the script's own stack."""
        self._stack, self._settings = stack, settings
        self.began = threading.Event()
        """Set once training is announced. Commands are not sent before that."""
        self._has_started = False
        self._ended = threading.Event()
        self._is_cancelled = False
        training.set_announcement_callback(self._on_announced)

    def run_sync(self) -> Any:
        """Train to the end, and return the trainer's result. Raises ConfigError if an event loop is running, because
        this call would block it. Use `await run()` instead."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._train()
        raise ConfigError("run_sync() would block the running event loop; use `await oven.run()`")

    async def run(self) -> Any:
        """Train in a thread, and return the trainer's result. If this task is cancelled, training ends after its
        current step, and its errors are raised."""
        training = asyncio.create_task(asyncio.to_thread(self._train))
        try:
            return await asyncio.shield(training)
        except asyncio.CancelledError:
            self._is_cancelled = True
            self._stop_if_cancelled()
            while not training.done():
                with contextlib.suppress(asyncio.CancelledError):  # training is already ending
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
        if not self._has_started:
            self.teachers.swap(name)
            return None
        return self._command(action="set", actuator=TEACHER_KNOB, value=name)

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
        """Replace the model of the judge with this role. If several members have the role, `name` selects one.

        The new model first answers a test question in the member's process, which needs the model's API key. If the
        model gives no verdict, the old one stays, and CommandRefusedError contains the reason. Otherwise it judges from
        the next step on. Weight, role and metrics do not change. Raises UnknownNameError or ConfigError.
        """
        names = [find_member(self._settings.judges, role, name)]
        options = {"base_url": base_url, "key_env": key_env, "logprobs": logprobs, "top_logprobs": top_logprobs}
        return self._swap(names, provider, model, options).get(names[0])

    def swap_all_agents(self, *, provider: str, model: str, **options: Any) -> dict[str, Receipt]:
        """Replace the model of every remote member. If one member cannot use it, none is changed. `options` are those
        of `swap_agent`. Returns one receipt per member."""
        if not self._settings.judges:
            raise ConfigError("the committee has no remote members; pass members= to bake()")
        return self._swap([*self._settings.judges], provider, model, options)

    def register_teacher(self, config: TeacherConfig) -> None:
        """Load another teacher, so that it can become active later.

        The calling thread loads it while training continues. The teacher then scores a test batch between two steps, or
        while the run is held. There is no timeout, because a step may be long.

        Raises TeacherRefusedError with the reason. Raises ConfigError if this training run started without a teacher or
        has ended. Raises BusError if the log is unreachable, although the teacher is loaded.
        """
        teachers = self.teachers
        if teachers is None or not len(teachers):
            raise ConfigError(f"teacher {config.name!r} needs a training run with a teacher; pass teachers= to bake()")
        if not self._has_started:
            teachers.register(config)
            return
        self._operator_folder()  # fail before anything changes
        candidate = teachers.prepare(config.name, config, during_training=True)
        self._training.run_between_steps(partial(teachers.admit, candidate))

        def announces_teacher(body: object) -> bool:
            if not isinstance(body, ActuatorAnnounced):
                return False
            return body.actuator.name == TEACHER_KNOB and config.name in body.actuator.choices

        run_in_thread(wait_for_message(*self._position_in_log(), announces_teacher, None, self._ended.is_set))

    def attach_to_model(self, model: Any) -> None:
        """Set `model.teacher` to the active teacher and `model.verifier` to the verifier. Both may be None."""
        model.verifier = self.verifier
        model.teacher = self.teachers[self.teachers.active] if self.teachers else None

    def close(self) -> None:
        """End this script's own stack. Further calls do nothing."""
        if self._stack is not None:
            self.summary, self._stack = self._stack.end(), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _train(self) -> Any:
        self._has_started = True
        self._ended.clear()
        try:
            return self._training.train()
        finally:
            self._ended.set()
            self.close()

    def _on_announced(self) -> None:
        self.began.set()
        self._stop_if_cancelled()

    def _stop_if_cancelled(self) -> None:
        if self._is_cancelled and self._training.client is not None:
            self._training.client.request_stop("cancelled by the script")

    def _swap(self, names: list[str], provider: str, model: str, options: Mapping[str, Any]) -> dict[str, Receipt]:
        """Replace the model of all these members, or of none if one refuses it."""
        try:
            judge = JudgeSpec(provider=provider, model=model, **options)
        except ValidationError as error:
            raise ConfigError(f"the judge {provider}/{model} is invalid: {reason(error)}") from None
        for name in names:
            check_judge(self._settings, name, judge)
        if not self._has_started:
            self._set_initial_model(names, judge)
            return {}
        timeout_s = COMMAND_TIMEOUT_S + (self.committee.remote.deadline_s if self.committee.remote else 0.0)
        for name in names:
            self._command(timeout_s=timeout_s, action="offer", actuator=actuator_of(name), judge=judge)
        receipts: dict[str, Receipt] = {}
        for name in names:
            receipt = self._command(action="set", actuator=actuator_of(name), value=judge.identity)
            assert receipt is not None  # a `set` command that is not refused always has a receipt
            receipts[name] = receipt
        return receipts

    def _set_initial_model(self, names: list[str], judge: JudgeSpec) -> None:
        """Before training, test the model in each member's process, and use it if all tests succeed."""
        remote = self.committee.remote
        assert remote is not None  # because `names` are remote members
        probes = {name: remote.probe(name, judge) for name in names}
        for name, probe in probes.items():
            try:
                refusal = probe.result(timeout=2 * remote.deadline_s)
            except TimeoutError:
                refusal = "the probe timed out"
            if refusal:
                raise CommandRefusedError(f"{name} keeps {self.committee.judges.active(name)}: {refusal}")
        for name in names:
            self.committee.choose_judge(name, self.committee.judges.offer(name, judge))

    def _command(self, timeout_s: float = COMMAND_TIMEOUT_S, **command: Any) -> Receipt | None:
        """Send a command once training is announced, and wait for its result in the log. Returns the learner's receipt,
        or None if the action has none. Raises CommandRefusedError with the reason, and BusError after a timeout."""
        if not self._has_started:
            raise ConfigError(f"{command['action']} has no effect before training has started")
        if self._ended.is_set():
            raise CommandRefusedError(f"{command['action']} has no effect, because training has ended")
        if not self.began.wait(COMMAND_TIMEOUT_S):
            raise CommandRefusedError(
                f"training was not announced within {COMMAND_TIMEOUT_S:g} s, so the command was not sent"
            )
        pending_result = send_command(*self._position_in_log(), new_command(**command), timeout_s, self._ended.is_set)
        result = run_in_thread(pending_result)
        if result.code:
            raise CommandRefusedError(result.line())
        return result.receipt

    def _operator_folder(self) -> Path:
        """Return the run's folder, with the operator's key. Raises ConfigError if it is on another machine."""
        if not self.folder.is_dir():
            raise ConfigError(
                f"the folder of run {self.run_name!r} (OVEN_RUN_DIR), which contains the operator's key, is not on "
                "this machine; run `oven-controller set …` where the stack runs"
            )
        return self.folder

    def _position_in_log(self) -> tuple[LocalRun, int]:
        """Return the run and the last sequence number in its log before the learner connected."""
        client = self._training.client
        assert client is not None  # because training was announced
        return LocalRun(RunFolder(self._operator_folder())), client.seq_at_connect


def find_member(members: Mapping[str, MemberSettings], role: str, name: str | None) -> str:
    """Return the member named `name`, or the only member with this role. Raises UnknownNameError if there is no such
    member, and ConfigError if several have the role."""
    if name is not None:
        if name not in members:
            raise UnknownNameError("member of the committee", name, members)
        return name
    candidates = [key for key, member in members.items() if member.role == role]
    if not candidates:
        raise UnknownNameError("role", role, {member.role for member in members.values()})
    if len(candidates) > 1:
        raise ConfigError(
            f"{', '.join(candidates)} all have the role {role}; choose one: swap_agent({role!r}, "
            f"name={candidates[0]!r}, …)"
        )
    return candidates[0]


def run_in_thread(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run the coroutine in a new thread, because the calling thread may already run an event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="oven-operator") as thread:
        return thread.submit(asyncio.run, coroutine).result()


async def send_command(
    run: LocalRun, after: int, command: OperatorCommand, timeout_s: float, has_ended: Callable[[], bool]
) -> CommandResult:
    """Send a command once the log contains a RunStarted after sequence number `after`, and return its result. Stops
    waiting when training ends."""
    await wait_for_message(run, after, lambda body: isinstance(body, RunStarted), timeout_s, has_ended)
    return await execute_command(run, command, timeout_s, has_ended)


async def wait_for_message(
    run: LocalRun,
    after: int,
    matches: Callable[[object], bool],
    timeout_s: float | None,
    has_ended: Callable[[], bool] = lambda: False,
) -> None:
    """Wait for a matching message in the log after sequence number `after`, or for `has_ended()`. Raises BusError."""
    async with asyncio.timeout(timeout_s), run.connect("operator") as bus:
        while not has_ended():
            async for batch in read_batches(bus, run.run, after):
                if any(matches(event.body) for event in batch):
                    return
                after = batch[-1].seq
            await asyncio.sleep(RETRY_S)
