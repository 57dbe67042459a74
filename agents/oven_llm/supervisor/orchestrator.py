"""`run`: a supervisor writes programs over a context, a worker reads the parts, and FINAL ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from oven_core.errors import ConfigError, OvenError
from oven_llm.providers.failures import HOPELESS, ModelFailure
from oven_llm.providers.usage import Usage
from oven_llm.sandbox.limits import Limits
from oven_llm.supervisor import prompts
from oven_llm.supervisor.caps import Cap, CapReachedError, Caps, Meter, unpriced
from oven_llm.supervisor.log import RecordedCalls, RunLogger
from oven_llm.supervisor.loop import MAX_ITERATIONS, Message, Outcome, conversation
from oven_llm.supervisor.loop import Ended as LoopEnded
from oven_llm.supervisor.model_calls import CallThreads, ModelCalls, StoppedError
from oven_llm.supervisor.models import ModelHandler
from oven_llm.supervisor.repl import OUTPUT_LIMIT, Context, Execution, Repl, Turn
from oven_llm.supervisor.worker_functions import Primitives, WorkerFunctions, check_primitives, described

Ended = LoopEnded | Cap | Literal["failed"]
"""Besides how the loop ends: a cap was reached before FINAL, or the supervisor could not be asked."""

WORKER_CTX_K: Final = 8
"""Thousands of tokens of the worker's window, as in Supervisor Distillation."""
CONCURRENCY: Final = 16
"""Worker calls at a time."""
LIMITS: Final = Limits(output_bytes=4_000_000)
"""Of a block: logs have its output whole, up to this; what is above is counted."""


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
    """The outcome of a run. `answer` is None unless it is `answered`, and may be None then, too."""

    answer: Any
    iterations: int
    """Answers of the supervisor."""
    supervisor_usage: Usage
    worker_usage: Usage
    elapsed: float
    """Seconds of this call; a resumed run's earlier time is not in it."""
    ended: Ended
    cost_usd: float | None
    """US dollars of all calls that were answered, those of an earlier part of a resumed run included; None where a
    price is not known."""
    why: str = ""
    """The reason, where a cap, or failures of the supervisor, ended it."""
    failed: int = 0
    """Turns in which nothing ran, or something that ran failed."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Calls that failed, by "supervisor KIND" and "worker KIND"."""
    calls: int = 0
    """Calls that were answered, of both."""
    unmetered: int = 0
    """Of those: calls that did not say what they used."""
    steps: tuple[Step, ...] = ()
    """The programs in their order."""

    @property
    def answered(self) -> bool:
        """Whether the supervisor gave an answer, by itself or when it was asked for it at the end."""
        return self.ended in ("final", "forced")


def run(
    query: str,
    context: Context,
    supervisor: ModelHandler,
    worker: ModelHandler,
    max_iterations: int = MAX_ITERATIONS,
    log_dir: str | Path | None = None,
    output_limit: int = OUTPUT_LIMIT,
    worker_ctx_k: int = WORKER_CTX_K,
    *,
    primitives: Primitives | None = None,
    caps: Caps | None = None,
    prompt: str = "",
    resume: bool = False,
    concurrency: int = CONCURRENCY,
    limits: Limits | None = None,
    backend: str | None = None,
) -> RunResult:
    """Asks the supervisor until FINAL, at most `max_iterations` times and once more for the answer alone.

    `log_dir` gets supervisor.jsonl, worker.jsonl and repl.jsonl. With `resume` it may hold an interrupted run of the
    same question: its programs run again, and a call that its log has an answer to is not made again. Calls of the
    worker that failed are repeated as the supervisor was told of them. `output_limit`: characters of a block's output
    that the supervisor is shown. `worker_ctx_k`: thousands of tokens of the worker's window, as the supervisor is told.
    `primitives` are called in this process, with its rights. `prompt` is appended to the system prompt.
    `concurrency`: worker calls at a time. `limits` and `backend` are the sandbox's.

    Raises ConfigError for arguments that do not fit, a context that is empty or too large, and where there is no
    sandbox; ProcessError where it does not start; OSError where the log cannot be written. What models do wrong is in
    the result.
    """
    asked = _Asked(query, supervisor, worker, max_iterations, worker_ctx_k, caps or Caps(), concurrency)
    return asked.play(context, primitives or {}, log_dir, output_limit, prompt, resume, limits or LIMITS, backend)


async def arun(
    query: str,
    context: Context,
    supervisor: ModelHandler,
    worker: ModelHandler,
    max_iterations: int = MAX_ITERATIONS,
    log_dir: str | Path | None = None,
    output_limit: int = OUTPUT_LIMIT,
    worker_ctx_k: int = WORKER_CTX_K,
    *,
    primitives: Primitives | None = None,
    caps: Caps | None = None,
    prompt: str = "",
    resume: bool = False,
    concurrency: int = CONCURRENCY,
    limits: Limits | None = None,
    backend: str | None = None,
) -> RunResult:
    """`run` beside an event loop: it works in its own thread. Cancelling it waits for no model and ends the block
    that runs (of the backend monty at its deadline); a primitive under way is waited for."""
    asked = _Asked(query, supervisor, worker, max_iterations, worker_ctx_k, caps or Caps(), concurrency)
    threads: CallThreads[RunResult] = CallThreads(1)
    going = threads.submit(
        partial(
            asked.play,
            context,
            primitives or {},
            log_dir,
            output_limit,
            prompt,
            resume,
            limits or LIMITS,
            backend,
        )
    )
    threads.close()
    result = asyncio.wrap_future(going)
    try:
        return await asyncio.shield(result)
    except asyncio.CancelledError:
        asked.stop()
        with contextlib.suppress(StoppedError, OvenError, OSError):
            await asyncio.shield(result)
        raise


class _Asked:
    """One question, and what has been done about it."""

    def __init__(
        self,
        query: str,
        supervisor: ModelHandler,
        worker: ModelHandler,
        max_iterations: int,
        worker_ctx_k: int,
        caps: Caps,
        concurrency: int,
    ) -> None:
        for name, value in (("worker_ctx_k", worker_ctx_k), ("concurrency", concurrency)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; give 1 or more")
        if not query.strip():
            raise ConfigError("the question is empty; say what is to be found out")
        for model in (supervisor, worker):
            if caps.usd is not None and not model.priced:
                raise ConfigError(unpriced(caps.usd, model.model))
        self._query, self._models = query, (supervisor, worker)
        self._max_iterations, self._worker_ctx_k, self._concurrency = max_iterations, worker_ctx_k, concurrency
        self._meter = Meter(caps)
        self._stopped: Future[None] = Future()
        self._repl: Repl | None = None
        self._step = 0

    def stop(self) -> None:
        """From another thread: calls are left behind, and the block that runs is ended."""
        self._stopped.set_result(None)
        if self._repl is not None:
            self._repl.interrupt()

    def play(
        self,
        context: Context,
        primitives: Primitives,
        log_dir: str | Path | None,
        output_limit: int,
        prompt: str,
        resume: bool,
        limits: Limits,
        backend: str | None,
    ) -> RunResult:
        """As `run`. Raises StoppedError after `stop`."""
        check_primitives(primitives)
        if not isinstance(context, str | list | dict):
            raise ConfigError(f"the context is of type {type(context).__name__}; give text, a list or a dict")
        if self._meter.caps.seconds is not None:
            limits = replace(limits, block_s=min(limits.block_s, self._meter.caps.seconds))
        secrets = [secret for model in self._models for secret in model.secrets]
        with contextlib.ExitStack() as exits:
            logger = exits.enter_context(RunLogger(log_dir, secrets=secrets, resume=resume))
            recorded = RecordedCalls(Path(log_dir) if log_dir is not None and resume else None)
            common = self._meter, logger, recorded, self._stopped
            asking = ModelCalls("supervisor", self._models[0], *common)
            working = ModelCalls("worker", self._models[1], *common, self._concurrency)
            exits.callback(asking.close)
            exits.callback(working.close)

            def ran(execution: Execution) -> None:
                if not recorded.ran(self._step, execution.code):
                    logger.ran(self._step, execution)

            functions = WorkerFunctions(working, lambda: self._step)
            own = {"worker": functions.worker, "worker_batch": functions.worker_batch}
            self._repl = exits.enter_context(
                Repl(
                    self._query, context, {**primitives, **own}, limits=limits, backend=backend,
                    output_limit=output_limit, ran=ran,
                )
            )  # fmt: skip
            opening = prompts.opening(
                self._query, context, output_limit=output_limit, worker_ctx_k=self._worker_ctx_k,
                turns=self._max_iterations, concurrency=self._concurrency, block_s=limits.block_s,
                primitives=described(primitives), more=prompt,
            )  # fmt: skip
            return self._talk(self._repl, opening, asking, working)

    def _talk(self, repl: Repl, opening: Sequence[Message], supervisor: ModelCalls, worker: ModelCalls) -> RunResult:
        turns = _FailedTurns(repl)
        talk = conversation(
            turns,
            opening,
            max_iterations=self._max_iterations,
            max_errors=self._meter.caps.errors,
            nudge=prompts.nudge,
        )

        def result(answer: Any, ended: Ended, why: str = "") -> RunResult:
            return self._result(answer, ended, why, turns, supervisor, worker)

        messages = next(talk)
        in_a_row = 0
        while True:
            self._step = turns.played + 1
            said = supervisor.ask(self._step, [messages])[0]
            _refuse(supervisor, worker)
            if isinstance(said, CapReachedError):
                return result(None, said.cap, str(said))
            if isinstance(said, ModelFailure):
                in_a_row += 1
                # The same messages would be refused again.
                if said.kind in HOPELESS or said.kind == "bad_request" or in_a_row >= self._meter.caps.errors:
                    return result(None, "failed", f"the supervisor cannot be asked: {said}")
                continue
            in_a_row = 0
            try:
                messages = talk.send(said)
            except StopIteration as end:
                _refuse(supervisor, worker)
                outcome: Outcome = end.value
                return result(outcome.answer, outcome.ended, _WHY.get(outcome.ended, ""))
            _refuse(supervisor, worker)

    def _result(
        self,
        answer: Any,
        ended: Ended,
        why: str,
        turns: _FailedTurns,
        supervisor: ModelCalls,
        worker: ModelCalls,
    ) -> RunResult:
        accounts = self._meter.supervisor, self._meter.worker
        failures = Counter({f"supervisor {kind}": count for kind, count in supervisor.failures.items()})
        failures.update({f"worker {kind}": count for kind, count in worker.failures.items()})
        return RunResult(
            answer=answer,
            iterations=turns.played,
            supervisor_usage=accounts[0].usage,
            worker_usage=accounts[1].usage,
            elapsed=self._meter.elapsed,
            ended=ended,
            cost_usd=self._meter.cost_usd,
            why=why,
            failed=turns.failed,
            failures=dict(sorted(failures.items())),
            calls=sum(one.calls for one in accounts),
            unmetered=sum(one.unmetered for one in accounts),
            steps=tuple(turns.steps),
        )


class _FailedTurns:
    """A REPL that counts: a run may end by a cap, without the loop's own outcome."""

    def __init__(self, repl: Repl) -> None:
        self._repl = repl
        self.played = self.failed = 0
        self.steps: list[Step] = []

    def turn(self, answer: str) -> Turn:
        turn = self._repl.turn(answer)
        self.played += 1
        self.failed += turn.failed
        for program in turn.executions:
            block = program.block
            self.steps.append(Step(self.played, program.code, block.stdout + block.stderr, block.ended))
        return turn


_WHY: Final[Mapping[str, str]] = {
    "errors": "too many turns in a row failed",
    "iterations": "all turns were used up, and no answer came when it was asked for",
}


def _refuse(*calls: ModelCalls) -> None:
    """Raises what must end the run."""
    for one in calls:
        if one.broken is not None:
            raise one.broken
