"""`run`: a supervisor writes programs over a context, a worker reads the parts, and FINAL gives the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, Unpack

from oven_core.errors import ConfigError, OvenError
from oven_llm.providers.failures import HOPELESS, ModelFailure
from oven_llm.providers.usage import Usage
from oven_llm.sandbox.limits import Limits
from oven_llm.supervisor import prompts
from oven_llm.supervisor.log import RecordedCalls, RunLogger
from oven_llm.supervisor.loop import MAX_ERRORS, MAX_ITERATIONS, Message, Outcome, conversation
from oven_llm.supervisor.loop import Ended as LoopEnded
from oven_llm.supervisor.model_calls import CallThreads, ModelCalls, StoppedError, TimeLimit
from oven_llm.supervisor.models import ModelHandler
from oven_llm.supervisor.program_functions import Primitives, WorkerFunctions, check_primitives, described
from oven_llm.supervisor.repl import OUTPUT_LIMIT, Context, Execution, Repl, Turn

Ended = LoopEnded | Literal["budget", "seconds", "failed"]
"""How the loop ended, or the limit that was reached before FINAL, or "failed": the supervisor could not be called."""

WORKER_CTX_K: Final = 8
"""Worker's context window in thousands of tokens, as in Supervisor Distillation."""
CONCURRENCY: Final = 16
"""Concurrent worker calls."""
LIMITS: Final = Limits(output_bytes=4_000_000)
"""Limits of a block. Logs have its whole output up to this size; the rest is counted."""
_REASONS: Final[Mapping[str, str]] = {
    "errors": "too many turns in a row failed",
    "iterations": "all turns were used up, and no answer came when it was requested",
}


@dataclass(frozen=True)
class Step:
    """One program that the supervisor wrote, and its outcome."""

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
    """Worker's context window in thousands of tokens, as the supervisor is told (8)."""
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
    return _Run(query, supervisor, worker, _Options(**options)).play(context)


async def arun(
    query: str, context: Context, supervisor: ModelHandler, worker: ModelHandler, **options: Unpack[RunOptions]
) -> RunResult:
    """Like `run`, but in its own thread. Cancelling waits for no model, and ends the running block. With the backend
    monty the block ends at its deadline. A running primitive is waited for."""
    running = _Run(query, supervisor, worker, _Options(**options))
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


@dataclass(frozen=True)
class _Options:
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


class _Run:
    """One question and its state."""

    def __init__(self, query: str, supervisor: ModelHandler, worker: ModelHandler, options: _Options) -> None:
        for name in ("worker_ctx_k", "concurrency"):
            if (value := getattr(options, name)) < 1:
                raise ConfigError(f"{name} is {value}; give 1 or more")
        if not query.strip():
            raise ConfigError("the question is empty; give a question")
        if options.seconds is not None and not options.seconds > 0:
            raise ConfigError(f"seconds is {options.seconds:g}; give a number above 0, or None for no limit")
        self._query, self._options = query, options
        self._supervisor, self._worker = supervisor, worker
        self._limit = TimeLimit(options.seconds)
        self._stopped: Future[None] = Future()
        self._repl: Repl | None = None
        self._step = 0

    def stop(self) -> None:
        """Cancel the run from another thread: leave the calls behind, and end the running block."""
        self._stopped.set_result(None)
        if self._repl is not None:
            self._repl.interrupt()

    def play(self, context: Context) -> RunResult:
        """Play the whole run. Raises the errors of `run`, and StoppedError after `stop`."""
        options, limits = self._options, self._options.limits or LIMITS
        check_primitives(options.primitives)
        if not isinstance(context, str | list | dict):
            raise ConfigError(f"the context is of type {type(context).__name__}; give text, a list or a dict")
        if options.seconds is not None:
            limits = replace(limits, block_s=min(limits.block_s, options.seconds))
        secrets = [*self._supervisor.secrets, *self._worker.secrets]
        with contextlib.ExitStack() as exits:
            logger = exits.enter_context(RunLogger(options.log_dir, secrets=secrets, resume=options.resume))
            resumed = Path(options.log_dir) if options.log_dir is not None and options.resume else None
            recorded = RecordedCalls(resumed)
            common = self._limit, logger, recorded, self._stopped
            supervisor_calls = ModelCalls("supervisor", self._supervisor, *common)
            worker_calls = ModelCalls("worker", self._worker, *common, options.concurrency)
            exits.callback(supervisor_calls.close)
            exits.callback(worker_calls.close)

            def log_execution(execution: Execution) -> None:
                if not recorded.ran(self._step, execution.code):
                    logger.ran(self._step, execution)

            functions = WorkerFunctions(worker_calls, lambda: self._step)
            self._repl = exits.enter_context(
                Repl(
                    self._query,
                    context,
                    {**options.primitives, "worker": functions.worker, "worker_batch": functions.worker_batch},
                    limits=limits,
                    backend=options.backend,
                    output_limit=options.output_limit,
                    on_execution=log_execution,
                )
            )
            opening = prompts.opening(
                self._query,
                context,
                output_limit=options.output_limit,
                worker_ctx_k=options.worker_ctx_k,
                turns=options.max_iterations,
                concurrency=options.concurrency,
                block_s=limits.block_s,
                primitives=described(options.primitives),
                more=options.prompt,
            )
            return self._converse(self._repl, opening, supervisor_calls, worker_calls)

    def _converse(
        self, repl: Repl, opening: Sequence[Message], supervisor: ModelCalls, worker: ModelCalls
    ) -> RunResult:
        turns = _CountedTurns(repl)
        loop = conversation(
            turns,
            opening,
            max_iterations=self._options.max_iterations,
            max_errors=self._options.max_errors,
            nudge=prompts.nudge,
        )

        def result(answer: Any, ended: Ended, why: str = "") -> RunResult:
            return self._result(answer, ended, why, turns, supervisor, worker)

        messages = next(loop)
        failed_in_a_row = 0
        while True:
            self._step = turns.played + 1
            answer = supervisor.ask(self._step, [messages])[0]
            _raise_fatal(supervisor, worker)
            if isinstance(answer, ModelFailure):
                if self._limit.remaining == 0:
                    return result(None, "seconds", self._limit.failure().detail)
                if answer.kind == "budget":
                    return result(None, "budget", answer.detail)
                failed_in_a_row += 1
                same_again = answer.kind in HOPELESS or answer.kind == "bad_request"
                if same_again or failed_in_a_row >= self._options.max_errors:
                    return result(None, "failed", f"the supervisor cannot be asked: {answer}")
                continue
            failed_in_a_row = 0
            try:
                messages = loop.send(answer)
            except StopIteration as end:
                _raise_fatal(supervisor, worker)
                outcome: Outcome = end.value
                return result(outcome.answer, outcome.ended, _REASONS.get(outcome.ended, ""))
            _raise_fatal(supervisor, worker)

    def _result(
        self, answer: Any, ended: Ended, why: str, turns: _CountedTurns, supervisor: ModelCalls, worker: ModelCalls
    ) -> RunResult:
        replies = [*supervisor.replies, *worker.replies]
        costs = [reply.cost_usd for reply in replies]
        failures = Counter({f"supervisor {kind}": count for kind, count in supervisor.failures.items()})
        failures.update({f"worker {kind}": count for kind, count in worker.failures.items()})
        return RunResult(
            answer=answer,
            iterations=turns.played,
            supervisor_usage=supervisor.usage,
            worker_usage=worker.usage,
            elapsed=self._limit.elapsed,
            ended=ended,
            cost_usd=None if None in costs else sum(cost or 0.0 for cost in costs),
            why=why,
            failed=turns.failed,
            failures=dict(sorted(failures.items())),
            calls=len(replies),
            unmetered=sum(reply.usage is None for reply in replies),
            steps=tuple(turns.steps),
        )


class _CountedTurns:
    """A REPL that counts turns: if a cap ends the run, the loop has no outcome with the counts."""

    def __init__(self, repl: Repl) -> None:
        self._repl = repl
        self.played = self.failed = 0
        self.steps: list[Step] = []

    def turn(self, answer: str) -> Turn:
        turn = self._repl.turn(answer)
        self.played += 1
        self.failed += turn.failed
        for execution in turn.executions:
            block = execution.block
            self.steps.append(Step(self.played, execution.code, block.stdout + block.stderr, block.ended))
        return turn


def _raise_fatal(*calls: ModelCalls) -> None:
    """Raise an error that must end the run."""
    for model_calls in calls:
        if model_calls.fatal is not None:
            raise model_calls.fatal
