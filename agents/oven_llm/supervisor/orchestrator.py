"""Runs the supervisor's loop (`run`, `arun`): a model explores a long context with programs and a worker model."""

from __future__ import annotations

import asyncio
import contextlib
import keyword
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypedDict, Unpack

from oven_core.errors import ConfigError, OvenError
from oven_llm.providers.failures import PERMANENT_KINDS
from oven_llm.providers.usage import Usage
from oven_llm.sandbox.limits import Limits
from oven_llm.sandbox.sandbox import CallError
from oven_llm.supervisor import prompts
from oven_llm.supervisor.model_calls import CallThreads, ModelCalls, StoppedError, TimeLimit
from oven_llm.supervisor.model_handlers import ModelHandler
from oven_llm.supervisor.repl import MAX_OUTPUT_CHARACTERS, Context, Execution, Repl
from oven_llm.supervisor.run_logger import RecordedCalls, RunLogger

Ending = Literal["final", "forced", "iterations", "errors", "budget", "seconds", "failed"]
"""How a run ended: a program called FINAL (`final`), the supervisor answered on request after the last turn (`forced`)
or did not (`iterations`), too many turns in a row failed (`errors`), a limit was reached (`budget`, `seconds`), or
calls to the supervisor failed (`failed`)."""
Primitives: TypeAlias = Mapping[str, Callable[..., Any]]
"""The caller's functions by name, which run in the caller's process. Arguments and results are JSON values."""
RESERVED_NAMES: Final = ("context", "query", "worker", "worker_batch", "FINAL")
"""Names that are always defined in programs."""
FAILED: Final = "failed"
"""Key of the reason for a failed call in the results of `worker_batch`."""

DEFAULT_ITERATIONS: Final = 15
"""Default maximum turns, as in Supervisor Distillation."""
DEFAULT_MAX_ERRORS: Final = 5
"""Default number of failures in a row that end the run. After so many, a supervisor does not recover."""
DEFAULT_CONTEXT_K: Final = 8
"""Default context window of the worker in thousands of tokens, as in Supervisor Distillation."""
DEFAULT_CONCURRENCY: Final = 16
"""Default maximum concurrent worker calls."""
DEFAULT_LIMITS: Final = Limits(output_bytes=4_000_000)
"""Default limits of the sandbox. Output up to this size is logged."""


@dataclass(frozen=True)
class Step:
    """One program written by the supervisor, with its outcome."""

    turn: int
    code: str
    output: str
    """Standard output and standard error."""
    ended: str
    """How the program ended, as in `Block.ending`."""


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run."""

    answer: Any
    """The answer; None if the run is not `answered`."""
    iterations: int
    """Number of the supervisor's turns."""
    supervisor_usage: Usage
    worker_usage: Usage
    elapsed: float
    """Duration in seconds, excluding the time before the run was resumed."""
    ended: Ending
    cost_usd: float | None
    """Cost of all answered calls in US dollars, including those before a resume; None if a price is unknown."""
    reason: str = ""
    """The reason if the run ended because of a limit or failures."""
    failed: int = 0
    """Number of turns in which nothing ran or a program failed."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Number of failed calls, by "supervisor KIND" and "worker KIND"."""
    calls: int = 0
    """Number of answered calls to both models."""
    unmetered: int = 0
    """Number of answered calls that did not report their usage."""
    steps: tuple[Step, ...] = ()
    """All programs in order."""

    @property
    def answered(self) -> bool:
        """Whether the supervisor returned an answer, by itself or on request after the last turn."""
        return self.ended in ("final", "forced")


class RunOptions(TypedDict, total=False):
    """Options of `run` and `arun`. Defaults are in parentheses."""

    max_iterations: int
    """Maximum turns of the supervisor (15). One last call then requests only the answer."""
    log_dir: str | Path | None
    """Folder for supervisor.jsonl, worker.jsonl and repl.jsonl."""
    output_limit: int
    """Maximum characters of a block's output that the supervisor sees (2,000)."""
    worker_ctx_k: int
    """Worker's context window in thousands of tokens, as stated to the supervisor (8)."""
    primitives: Primitives
    """Functions that programs can call. They run in this process, outside the sandbox."""
    seconds: float | None
    """Maximum duration of the run in seconds. Calls that are still in progress are abandoned."""
    max_errors: int
    """Number of failed turns in a row, or failed calls in a row, that end the run (5)."""
    prompt: str
    """Text to append to the system prompt."""
    resume: bool
    """Whether to continue an interrupted run of the same question in `log_dir`. Its programs run again with recorded
    replies, so that answered calls are not repeated."""
    concurrency: int
    """Maximum concurrent worker calls (16)."""
    limits: Limits | None
    """Limits of the sandbox."""
    backend: str | None
    """Backend of the sandbox; None for the strongest one."""


def run(
    query: str, context: Context, supervisor: ModelHandler, worker: ModelHandler, **options: Unpack[RunOptions]
) -> RunResult:
    """Answer the query with at most `max_iterations` turns of the supervisor, and one more call that requests only the
    answer. Failures of the models are part of the result. Raises ConfigError if an argument is invalid or no
    sandbox is available, ProcessError if the sandbox does not start, and OSError if the log cannot be written."""
    return _Run(query, supervisor, worker, **options).run(context)


async def arun(
    query: str, context: Context, supervisor: ModelHandler, worker: ModelHandler, **options: Unpack[RunOptions]
) -> RunResult:
    """Do the same as `run` in a separate thread. Cancellation abandons model calls and stops the running block (in
    monty at its deadline), but waits for a running primitive."""
    running = _Run(query, supervisor, worker, **options)
    threads: CallThreads[RunResult] = CallThreads(1)
    result = asyncio.wrap_future(threads.submit(lambda: running.run(context)))
    threads.close()
    try:
        return await asyncio.shield(result)
    except asyncio.CancelledError:
        running.stop()
        with contextlib.suppress(StoppedError, OvenError, OSError):
            await asyncio.shield(result)
        raise


@dataclass
class _Run:
    """The state of one run, with its options (RunOptions)."""

    query: str
    supervisor: ModelHandler
    worker: ModelHandler
    max_iterations: int = DEFAULT_ITERATIONS
    log_dir: str | Path | None = None
    output_limit: int = MAX_OUTPUT_CHARACTERS
    worker_ctx_k: int = DEFAULT_CONTEXT_K
    primitives: Primitives = field(default_factory=dict)
    seconds: float | None = None
    max_errors: int = DEFAULT_MAX_ERRORS
    prompt: str = ""
    resume: bool = False
    concurrency: int = DEFAULT_CONCURRENCY
    limits: Limits | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        for name in ("worker_ctx_k", "concurrency", "max_iterations", "max_errors"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}; expected 1 or more")
        if not self.query.strip():
            raise ConfigError("the question is empty")
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"seconds is {self.seconds:g}; expected a number above 0, or None for no limit")
        for name, function in self.primitives.items():
            if name in RESERVED_NAMES or keyword.iskeyword(name) or not name.isidentifier():
                raise ConfigError(
                    f"{name!r} is not a valid name for a primitive; reserved names: {', '.join(RESERVED_NAMES)}"
                )
            if not callable(function):
                raise ConfigError(f"the primitive {name} is of type {type(function).__name__}; expected a function")
        self._time_limit = TimeLimit(self.seconds)
        self._cancellation: Future[None] = Future()
        self._repl: Repl | None = None
        self._finished_turns = self._failed_turns = 0
        self._steps: list[Step] = []

    def stop(self) -> None:
        """Cancel the run from another thread: abandon its model calls and stop the running block."""
        self._cancellation.set_result(None)
        if self._repl is not None:
            self._repl.interrupt()

    def run(self, context: Context) -> RunResult:
        """Return the result of the run. Raises the errors of the function `run`, and StoppedError after `stop`."""
        if not isinstance(context, str | list | dict):
            raise ConfigError(f"the context is of type {type(context).__name__}; expected a string, a list or a dict")
        limits = self.limits or DEFAULT_LIMITS
        if self.seconds is not None:
            limits = replace(limits, block_s=min(limits.block_s, self.seconds))
        secrets = [*self.supervisor.secrets, *self.worker.secrets]
        with contextlib.ExitStack() as exit_stack:
            logger = exit_stack.enter_context(
                contextlib.closing(RunLogger(self.log_dir, secrets=secrets, resume=self.resume))
            )
            recorded_calls = RecordedCalls(Path(self.log_dir) if self.log_dir is not None and self.resume else None)
            shared_arguments = self._time_limit, logger, recorded_calls, self._cancellation
            supervisor = ModelCalls("supervisor", self.supervisor, *shared_arguments)
            worker = ModelCalls("worker", self.worker, *shared_arguments, self.concurrency)
            exit_stack.callback(supervisor.close)
            exit_stack.callback(worker.close)

            def log_execution(execution: Execution) -> None:
                block = execution.block
                self._steps.append(Step(self._turn, execution.code, block.stdout + block.stderr, block.ending))
                if not recorded_calls.take_program(self._turn, execution.code):
                    logger.log_program(self._turn, execution)

            functions = WorkerFunctions(worker, lambda: self._turn)
            self._repl = Repl(
                self.query,
                context,
                {**self.primitives, "worker": functions.worker, "worker_batch": functions.worker_batch},
                limits=limits,
                backend=self.backend,
                output_limit=self.output_limit,
                on_execution=log_execution,
            )
            exit_stack.callback(self._repl.close)
            opening = prompts.build_opening(
                self.query,
                context,
                output_limit=self.output_limit,
                worker_ctx_k=self.worker_ctx_k,
                turns=self.max_iterations,
                concurrency=self.concurrency,
                block_s=limits.block_s,
                primitives=self.primitives,
                instructions=self.prompt,
            )
            answer, ended, reason = self._converse(self._repl, list(opening), supervisor, worker)
            return self._report(answer, ended, reason, supervisor, worker)

    @property
    def _turn(self) -> int:
        """Number of the current turn."""
        return self._finished_turns + 1

    def _converse(
        self, repl: Repl, messages: list[dict[str, str]], supervisor: ModelCalls, worker: ModelCalls
    ) -> tuple[Any, Ending, str]:
        """Run all turns. Return the answer, the ending and its reason. The last turn's answer may be plain text."""
        consecutive_failures = 0
        while True:
            answer = self._ask(supervisor, messages)
            if not isinstance(answer, str):
                ending, reason = answer
                return None, ending, reason
            turn = repl.run_turn(answer)
            _raise_fatal(supervisor, worker)
            self._finished_turns += 1
            self._failed_turns += int(turn.failed)
            is_extra_turn = self._finished_turns > self.max_iterations
            if turn.answer is not None:
                return turn.answer.value, "forced" if is_extra_turn else "final", ""
            if is_extra_turn and not turn.executions and not turn.is_truncated and answer.strip():
                return answer.strip(), "forced", ""
            if is_extra_turn:
                return None, "iterations", "the supervisor used all turns and did not answer on request"
            consecutive_failures = consecutive_failures + 1 if turn.failed else 0
            if consecutive_failures >= self.max_errors:
                return None, "errors", "too many turns in a row failed"
            reminder = prompts.build_reminder(self.max_iterations - self._finished_turns, self.max_iterations)
            messages += (
                {"role": "assistant", "content": answer},
                {"role": "user", "content": f"{turn.message}\n\n{reminder}"},
            )

    def _ask(self, supervisor: ModelCalls, messages: list[dict[str, str]]) -> str | tuple[Ending, str]:
        """Return the supervisor's next answer. Without one, return how the run ends and the reason."""
        for _ in range(self.max_errors):
            answer = supervisor.ask(self._turn, [tuple(messages)])[0]
            _raise_fatal(supervisor)
            if isinstance(answer, str):
                return answer
            if self._time_limit.remaining == 0:
                return "seconds", self._time_limit.create_failure().detail
            if answer.kind == "budget":
                return "budget", answer.detail
            if answer.kind in PERMANENT_KINDS or answer.kind == "bad_request":
                break
        return "failed", f"the supervisor's model failed: {answer}"

    def _report(self, answer: Any, ended: Ending, reason: str, supervisor: ModelCalls, worker: ModelCalls) -> RunResult:
        replies = [*supervisor.replies, *worker.replies]
        costs = [reply.cost_usd for reply in replies]
        failures = Counter({f"supervisor {kind}": count for kind, count in supervisor.failures.items()})
        failures.update({f"worker {kind}": count for kind, count in worker.failures.items()})
        return RunResult(
            answer=answer,
            iterations=self._finished_turns,
            supervisor_usage=supervisor.usage,
            worker_usage=worker.usage,
            elapsed=self._time_limit.elapsed,
            ended=ended,
            cost_usd=None if None in costs else sum(cost or 0.0 for cost in costs),
            reason=reason,
            failed=self._failed_turns,
            failures=dict(sorted(failures.items())),
            calls=len(replies),
            unmetered=sum(reply.usage is None for reply in replies),
            steps=tuple(self._steps),
        )


def _raise_fatal(*calls: ModelCalls) -> None:
    """Raise the first error that must end the run, if there is one."""
    for model_calls in calls:
        if model_calls.fatal_error is not None:
            raise model_calls.fatal_error


class WorkerFunctions:
    """The functions `worker` and `worker_batch` for programs in the sandbox."""

    def __init__(self, calls: ModelCalls, get_turn: Callable[[], int]) -> None:
        """`get_turn` returns the number of the supervisor's current turn, for the log."""
        self._calls, self._get_turn = calls, get_turn

    def worker(self, *args: Any, **kwargs: Any) -> str:
        """Return the worker's answer to one prompt. Raises CallError, which the program sees as an error."""
        prompt = _get_only_argument("worker", "prompt", args, kwargs)
        if not isinstance(prompt, str):
            raise CallError(
                f"worker(prompt) requires a string, not {_describe_type(prompt)}; use worker_batch for several prompts"
            )
        outcome = self._calls.ask(self._get_turn(), [prompt])[0]
        if not isinstance(outcome, str):
            raise CallError(f"the worker failed: {outcome}")
        return outcome

    def worker_batch(self, *args: Any, **kwargs: Any) -> list[str | dict[str, str]]:
        """Return one answer of the worker per prompt. Raises CallError if the prompts are not a list of strings."""
        prompts = _get_only_argument("worker_batch", "prompts", args, kwargs)
        if not isinstance(prompts, list):
            raise CallError(f"worker_batch(prompts) requires a list of strings, not {_describe_type(prompts)}")
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise CallError(
                    f"worker_batch(prompts) requires a list of strings, but item {index} is {_describe_type(prompt)}"
                )
        outcomes = self._calls.ask(self._get_turn(), prompts)
        return [outcome if isinstance(outcome, str) else {FAILED: str(outcome)} for outcome in outcomes]


def _get_only_argument(function: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the only argument, which may be positional or named. Raises CallError if there is not exactly one."""
    if len(args) == 1 and not kwargs:
        return args[0]
    if not args and list(kwargs) == [name]:
        return kwargs[name]
    raise CallError(f"{function}({name}) requires one argument, not {len(args) + len(kwargs)}")


def _describe_type(value: object) -> str:
    names = {"NoneType": "None", "dict": "a dict", "list": "a list", "str": "a string"}
    return names.get(type(value).__name__, f"a value of type {type(value).__name__}")
