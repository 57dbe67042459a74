"""Runs the supervisor's loop: it writes programs to process a context, and a worker reads the parts until FINAL."""

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
from oven_llm.providers.failures import HOPELESS
from oven_llm.providers.usage import Usage
from oven_llm.sandbox.exchange import CallError
from oven_llm.sandbox.limits import Limits
from oven_llm.supervisor import prompts
from oven_llm.supervisor.log import RecordedCalls, RunLogger
from oven_llm.supervisor.model_calls import CallOutcome, CallThreads, ModelCalls, StoppedError, TimeLimit
from oven_llm.supervisor.models import ModelHandler
from oven_llm.supervisor.repl import OUTPUT_LIMIT, Context, Execution, Repl

Ended = Literal["final", "forced", "iterations", "errors", "budget", "seconds", "failed"]
"""`final`: FINAL was called. `forced`: the answer came when it was requested after the last turn. `iterations`: it did
not come then either. `errors`: too many turns in a row failed. `budget`, `seconds`: a limit was reached before FINAL.
`failed`: the supervisor could not be called."""
Primitives: TypeAlias = Mapping[str, Callable[..., Any]]
"""The caller's functions by name. Arguments and results are JSON values. They run in the caller's process, with its
rights."""
RESERVED: Final = ("context", "query", "worker", "worker_batch", "FINAL")
"""Names that are always defined in programs."""
FAILED: Final = "failed"

MAX_ITERATIONS: Final = 15
"""Maximum turns, as in Supervisor Distillation."""
MAX_ERRORS: Final = 5
"""Failures in a row that end the run: a supervisor that fails so often does not recover."""
WORKER_CTX_K: Final = 8
"""Worker's context window in thousands of tokens, as in Supervisor Distillation."""
CONCURRENCY: Final = 16
"""Concurrent worker calls."""
LIMITS: Final = Limits(output_bytes=4_000_000)
"""Limits of a block. Logs contain its output up to this size; the rest is only counted."""


@dataclass(frozen=True)
class Step:
    """One program written by the supervisor, with its outcome."""

    turn: int
    code: str
    output: str
    """Standard output and errors."""
    ended: str
    """How the program ended, as in `Block.ended`."""


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run. `answer` is None unless the run is `answered`, and may be None then too."""

    answer: Any
    iterations: int
    """Answers of the supervisor."""
    supervisor_usage: Usage
    worker_usage: Usage
    elapsed: float
    """Seconds of this call, without the earlier time of a resumed run."""
    ended: Ended
    cost_usd: float | None
    """US dollars of all answered calls, with those of an earlier part of a resumed run; None if a price is unknown."""
    why: str = ""
    """The reason if a limit, or failures of the supervisor, ended the run."""
    failed: int = 0
    """Turns in which nothing ran, or a program failed."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Failed calls, by "supervisor KIND" and "worker KIND"."""
    calls: int = 0
    """Answered calls of both models."""
    unmetered: int = 0
    """Answered calls that did not report their tokens."""
    steps: tuple[Step, ...] = ()
    """The programs in their order."""

    @property
    def answered(self) -> bool:
        """Whether the supervisor gave an answer, on its own or when it was requested at the end."""
        return self.ended in ("final", "forced")


class RunOptions(TypedDict, total=False):
    """Options of `run` and `arun`."""

    max_iterations: int
    """Turns of the supervisor (15). After them it is asked once more, for the answer alone."""
    log_dir: str | Path | None
    """Folder for supervisor.jsonl, worker.jsonl and repl.jsonl."""
    output_limit: int
    """Characters of a block's output that the supervisor sees (2,000)."""
    worker_ctx_k: int
    """Worker's context window in thousands of tokens, as stated to the supervisor (8)."""
    primitives: Primitives
    """Functions that programs can call. They run in this process, with its rights."""
    seconds: float | None
    """Limit of the run. After it, no call is made, and none is waited for."""
    max_errors: int
    """Turns in a row that may fail, and calls of the supervisor in a row (5)."""
    prompt: str
    """Text that is appended to the system prompt."""
    resume: bool
    """Continue the interrupted run of the same question in `log_dir`. Its programs run again, and answered calls are
    not repeated. Failed worker calls are repeated as the supervisor knows them."""
    concurrency: int
    """Concurrent worker calls (16)."""
    limits: Limits | None
    """Limits of the sandbox."""
    backend: str | None
    """Backend of the sandbox; None for the strongest."""


def run(
    query: str, context: Context, supervisor: ModelHandler, worker: ModelHandler, **options: Unpack[RunOptions]
) -> RunResult:
    """Call the supervisor until FINAL, at most `max_iterations` times and once more for the answer alone.

    Raises ConfigError for invalid arguments, a context that is empty or too large, and if there is no sandbox;
    ProcessError if the sandbox does not start; OSError if the log cannot be written. Errors of the models are in the
    result.
    """
    return _Run(query, supervisor, worker, **options).play(context)


async def arun(
    query: str, context: Context, supervisor: ModelHandler, worker: ModelHandler, **options: Unpack[RunOptions]
) -> RunResult:
    """Like `run`, but in its own thread. Cancelling waits for no model, and ends the running block. With the backend
    monty the block ends at its deadline. A running primitive is waited for."""
    running = _Run(query, supervisor, worker, **options)
    threads: CallThreads[RunResult] = CallThreads(1)
    result = asyncio.wrap_future(threads.submit(lambda: running.play(context)))
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
    """One question with its options (RunOptions) and its state."""

    query: str
    supervisor: ModelHandler
    worker: ModelHandler
    max_iterations: int = MAX_ITERATIONS
    log_dir: str | Path | None = None
    output_limit: int = OUTPUT_LIMIT
    worker_ctx_k: int = WORKER_CTX_K
    primitives: Primitives = field(default_factory=dict)
    seconds: float | None = None
    max_errors: int = MAX_ERRORS
    prompt: str = ""
    resume: bool = False
    concurrency: int = CONCURRENCY
    limits: Limits | None = None
    backend: str | None = None

    def __post_init__(self) -> None:
        for name in ("worker_ctx_k", "concurrency", "max_iterations", "max_errors"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}; give 1 or more")
        if not self.query.strip():
            raise ConfigError("the question is empty; give a question")
        if self.seconds is not None and not self.seconds > 0:
            raise ConfigError(f"seconds is {self.seconds:g}; give a number above 0, or None for no limit")
        for name, function in self.primitives.items():
            if name in RESERVED or keyword.iskeyword(name) or not name.isidentifier():
                raise ConfigError(f"{name!r} cannot be the name of a primitive; {', '.join(RESERVED)} are reserved")
            if not callable(function):
                raise ConfigError(f"the primitive {name} is of type {type(function).__name__}; give a function")
        self._limit = TimeLimit(self.seconds)
        self._stopped: Future[None] = Future()
        self._repl: Repl | None = None
        self._turns = self._failed_turns = 0
        self._steps: list[Step] = []

    def stop(self) -> None:
        """Cancel the run from another thread: abandon the active calls and end the running block."""
        self._stopped.set_result(None)
        if self._repl is not None:
            self._repl.interrupt()

    def play(self, context: Context) -> RunResult:
        """Play the whole run. Raises the errors of `run`, and StoppedError after `stop`."""
        if not isinstance(context, str | list | dict):
            raise ConfigError(f"the context is of type {type(context).__name__}; give text, a list or a dict")
        limits = self.limits or LIMITS
        if self.seconds is not None:
            limits = replace(limits, block_s=min(limits.block_s, self.seconds))
        secrets = [*self.supervisor.secrets, *self.worker.secrets]
        with contextlib.ExitStack() as exits:
            logger = exits.enter_context(
                contextlib.closing(RunLogger(self.log_dir, secrets=secrets, resume=self.resume))
            )
            recorded = RecordedCalls(Path(self.log_dir) if self.log_dir is not None and self.resume else None)
            common = self._limit, logger, recorded, self._stopped
            supervisor = ModelCalls("supervisor", self.supervisor, *common)
            worker = ModelCalls("worker", self.worker, *common, self.concurrency)
            exits.callback(supervisor.close)
            exits.callback(worker.close)

            def log_execution(execution: Execution) -> None:
                block = execution.block
                self._steps.append(Step(self._step, execution.code, block.stdout + block.stderr, block.ended))
                if not recorded.ran(self._step, execution.code):
                    logger.ran(self._step, execution)

            functions = WorkerFunctions(worker, lambda: self._step)
            self._repl = Repl(
                self.query,
                context,
                {**self.primitives, "worker": functions.worker, "worker_batch": functions.worker_batch},
                limits=limits,
                backend=self.backend,
                output_limit=self.output_limit,
                on_execution=log_execution,
            )
            exits.callback(self._repl.close)
            opening = prompts.opening(
                self.query,
                context,
                output_limit=self.output_limit,
                worker_ctx_k=self.worker_ctx_k,
                turns=self.max_iterations,
                concurrency=self.concurrency,
                block_s=limits.block_s,
                primitives=self.primitives,
                more=self.prompt,
            )
            return self._result(*self._converse(self._repl, [*opening], supervisor, worker), supervisor, worker)

    @property
    def _step(self) -> int:
        """Number of the current turn."""
        return self._turns + 1

    def _converse(
        self, repl: Repl, messages: list[dict[str, str]], supervisor: ModelCalls, worker: ModelCalls
    ) -> tuple[Any, Ended, str]:
        """Play turns until the run ends. Return the answer, how it ended, and why. After the last turn, the answer
        alone is requested: then FINAL counts, and also a text without a program."""
        failed_in_a_row = 0
        while True:
            answer = self._ask(supervisor, messages)
            if not isinstance(answer, str):
                return None, *answer
            turn = repl.turn(answer)
            _raise_fatal(supervisor, worker)
            self._turns += 1
            self._failed_turns += turn.failed
            last = self._turns > self.max_iterations
            if turn.answer is not None:
                return turn.answer.value, "forced" if last else "final", ""
            if last and not turn.executions and not turn.cut and answer.strip():
                return answer.strip(), "forced", ""
            if last:
                return None, "iterations", "all turns were used up, and no answer came when it was requested"
            failed_in_a_row = failed_in_a_row + 1 if turn.failed else 0
            if failed_in_a_row >= self.max_errors:
                return None, "errors", "too many turns in a row failed"
            nudge = prompts.nudge(self.max_iterations - self._turns, self.max_iterations)
            messages += (
                {"role": "assistant", "content": answer},
                {"role": "user", "content": f"{turn.message}\n\n{nudge}"},
            )

    def _ask(self, supervisor: ModelCalls, messages: list[dict[str, str]]) -> str | tuple[Ended, str]:
        """Return the supervisor's next answer, or how and why the run ends without one."""
        for _ in range(self.max_errors):
            answer = supervisor.ask(self._step, [tuple(messages)])[0]
            _raise_fatal(supervisor)
            if isinstance(answer, str):
                return answer
            if self._limit.remaining == 0:
                return "seconds", self._limit.failure().detail
            if answer.kind == "budget":
                return "budget", answer.detail
            if answer.kind in HOPELESS or answer.kind == "bad_request":
                break
        return "failed", f"the supervisor cannot be asked: {answer}"

    def _result(self, answer: Any, ended: Ended, why: str, supervisor: ModelCalls, worker: ModelCalls) -> RunResult:
        replies = [*supervisor.replies, *worker.replies]
        costs = [reply.cost_usd for reply in replies]
        failures = Counter({f"supervisor {kind}": count for kind, count in supervisor.failures.items()})
        failures.update({f"worker {kind}": count for kind, count in worker.failures.items()})
        return RunResult(
            answer=answer,
            iterations=self._turns,
            supervisor_usage=supervisor.usage,
            worker_usage=worker.usage,
            elapsed=self._limit.elapsed,
            ended=ended,
            cost_usd=None if None in costs else sum(cost or 0.0 for cost in costs),
            why=why,
            failed=self._failed_turns,
            failures=dict(sorted(failures.items())),
            calls=len(replies),
            unmetered=sum(reply.usage is None for reply in replies),
            steps=tuple(self._steps),
        )


def _raise_fatal(*calls: ModelCalls) -> None:
    """Raise an error that must end the run."""
    for model_calls in calls:
        if model_calls.fatal is not None:
            raise model_calls.fatal


class WorkerFunctions:
    """`worker` and `worker_batch` over one model, for the sandbox's thread."""

    def __init__(self, calls: ModelCalls, step: Callable[[], int]) -> None:
        """`step` returns the supervisor's turn, for the log."""
        self._calls, self._step = calls, step

    def worker(self, *args: Any, **kwargs: Any) -> str:
        """Return the worker's answer to one prompt. Raises CallError, which fails in the program."""
        prompt = _only_argument("worker", "prompt", args, kwargs)
        if not isinstance(prompt, str):
            raise CallError(
                f"worker(prompt) takes a text, not {_type_name(prompt)}; use worker_batch for several prompts"
            )
        outcome = self._calls.ask(self._step(), [prompt])[0]
        if not isinstance(outcome, str):
            raise CallError(f"the worker failed: {outcome}")
        return outcome

    def worker_batch(self, *args: Any, **kwargs: Any) -> list[str | dict[str, str]]:
        """Return the worker's answers, one per prompt. Raises CallError if the prompts are not a list of texts."""
        prompts = _only_argument("worker_batch", "prompts", args, kwargs)
        if not isinstance(prompts, list):
            raise CallError(f"worker_batch(prompts) takes a list of texts, not {_type_name(prompts)}")
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, str):
                raise CallError(f"worker_batch(prompts) takes a list of texts; item {index} is {_type_name(prompt)}")
        return [_slot(outcome) for outcome in self._calls.ask(self._step(), prompts)]


def _slot(outcome: CallOutcome) -> str | dict[str, str]:
    return outcome if isinstance(outcome, str) else {FAILED: str(outcome)}


def _only_argument(function: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the only argument, given by position or name. Raises CallError."""
    if len(args) == 1 and not kwargs:
        return args[0]
    if not args and list(kwargs) == [name]:
        return kwargs[name]
    raise CallError(f"{function}({name}) takes one argument; it got {len(args) + len(kwargs)}")


def _type_name(value: object) -> str:
    names = {"NoneType": "None", "dict": "a dict", "list": "a list", "str": "a text"}
    return names.get(type(value).__name__, f"a value of type {type(value).__name__}")
