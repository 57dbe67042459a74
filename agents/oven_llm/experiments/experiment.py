"""A measured run: each question is put to the supervisor and to the baselines, scored, and kept once it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from oven_core.errors import ConfigError, ProcessError, reason
from oven_llm.experiments import baselines, correctness_judge
from oven_llm.experiments.asked_once import AskedOnce
from oven_llm.experiments.correctness_judge import UnreadableVerdictError
from oven_llm.experiments.run_folder import Answered, Outcome, RunConfig, RunFolder
from oven_llm.experiments.sample import Posed
from oven_llm.providers.failures import HOPELESS, KINDS, Kind, ModelFailure
from oven_llm.providers.usage import Usage
from oven_llm.supervisor.call_threads import CallThreads
from oven_llm.supervisor.models import ModelHandler
from oven_llm.supervisor.orchestrator import RunResult, arun
from oven_llm.tasks import official_score
from oven_llm.tasks.example import Example, Prediction, prediction_of

_Result = TypeVar("_Result")
Scoring = Callable[[Prediction | None, str], Awaitable[Answered]]
"""(answer, the failure that it is lost to) → the scored answer."""

OWN_CALLS: Final = "own_calls.jsonl"
"""The file with what the experiment itself asked: the worker for baselines, and the judge."""
NO_ANSWER: Final = ("iterations", "errors")
"""How a supervisor's run ends that has no answer by its own doing: a wrong answer, and not a failure."""
BY_PROMPT: Final[frozenset[Kind]] = frozenset(("bad_request", "refusal"))
"""Failures of the worker's that the program's prompt brought about, such as one longer than its window: what a
supervisor makes of them is scored. After any other one the question has no score."""
LOST: Final = frozenset(KINDS) - BY_PROMPT
"""The others: a question that is put again asks those calls again."""


@dataclass(frozen=True)
class Models:
    """`judge` None: the score is exact match."""

    supervisor: ModelHandler
    worker: ModelHandler
    judge: ModelHandler | None


@dataclass(frozen=True)
class Done:
    """The outcomes by number, and why not all of them are there; empty: they are."""

    outcomes: dict[int, Outcome]
    stopped: str


class Experiment:
    """One run over questions. A question whose outcome is in the folder already is left as it is, unless a call failed
    in it; of one that was interrupted no call is made again that was answered."""

    def __init__(
        self, folder: RunFolder, config: RunConfig, models: Models, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        """`tell` is given a line for each question that is done."""
        self._folder, self._config, self._models, self._tell = folder, config, models, tell
        self._threads: CallThreads[Any] = CallThreads(config.concurrency)
        self._outcomes: dict[int, Outcome] = {}
        self._ended = 0
        self._stopped = ""

    def run(self, questions: Sequence[Posed]) -> Done:
        """Raises ConfigError where the folder or the sandbox cannot be used, OSError where nothing can be written."""
        self._outcomes = self._kept(questions)  # the tables have the rows of an earlier process from the first on
        try:
            asyncio.run(self._all(questions))
        finally:
            self._threads.close()
            self._folder.write_tables(sorted(self._outcomes.items()))
        return Done(self._outcomes, self._stopped)

    def _kept(self, questions: Sequence[Posed]) -> dict[int, Outcome]:
        """Of earlier processes. Raises ConfigError for one that cannot be read, or is another question's."""
        found: dict[int, Outcome] = {}
        for number, posed in enumerate(questions):
            known = self._folder.outcome(number)
            if known is None:
                continue
            if known.id != posed.example.id:
                place = self._folder.example(number)
                raise ConfigError(f"{place} holds another question, {known.id}; name another folder")
            found[number] = known
        return found

    async def _all(self, questions: Sequence[Posed]) -> None:
        waiting = iter(enumerate(questions))

        async def next_ones() -> None:
            for number, posed in waiting:
                if self._stopped:
                    return
                await self._one(number, posed, len(questions))

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(self._config.concurrency, len(questions))):
                    tasks.create_task(next_ones())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _one(self, number: int, posed: Posed, of: int) -> None:
        known = self._outcomes.get(number)
        if known is None or not known.settled:
            known = await self._asked(number, posed)
            self._folder.keep(number, known)
        self._outcomes[number] = known
        self._ended += 1
        self._folder.write_tables(sorted(self._outcomes.items()))
        self._tell(f"{self._ended}/{of}  {_said(known)}")

    async def _asked(self, number: int, posed: Posed) -> Outcome:
        folder = self._folder.example(number)
        folder.mkdir(exist_ok=True)
        result, failure = await self._supervised(number, posed)
        own = AskedOnce(folder / OWN_CALLS)
        score = partial(self._scored, own, posed.example)
        answer = prediction_of(result.answer) if result is not None and result.answered else None
        supervised = await score(answer, failure)
        if result is not None:
            used = None if result.unmetered else result.supervisor_usage + result.worker_usage
            supervised = supervised.model_copy(update=_cost(used, result.cost_usd))
        others = {name: await self._baseline(name, own, posed, score) for name in self._baselines}
        return Outcome(
            id=posed.example.id,
            doc_id=posed.example.document.id,
            question=posed.example.question,
            label=" | ".join(dict.fromkeys(one.answer for one in posed.example.references)),
            ended=result.ended if result is not None else "failed",
            iterations=result.iterations if result is not None else 0,
            supervised=supervised,
            baselines=others,
            elapsed=result.elapsed if result is not None else 0.0,
        )

    @property
    def _baselines(self) -> Sequence[baselines.Baseline]:
        return baselines.BASELINES if self._config.baselines else ()

    async def _supervised(self, number: int, posed: Posed) -> tuple[RunResult | None, str]:
        """The supervisor's run, and the failure that leaves it no score: its answer may rest on a call that failed."""
        try:
            result = await arun(
                posed.query,
                list(posed.context),
                self._models.supervisor,
                self._models.worker,
                self._config.max_iterations,
                self._folder.example(number),
                worker_ctx_k=self._config.worker_ctx_k,
                prompt=self._config.prompt,
                resume=True,
                again=LOST,
            )
        except ProcessError as error:
            return None, f"sandbox: {reason(error)}"
        for role in ("supervisor", "worker"):
            self._stop_if_hopeless(role, result.failed_kinds(role), result.why)
        if result.answered or result.ended in NO_ANSWER:
            lost = sorted(result.failed_kinds("worker") & LOST)
            return result, f"worker: {', '.join(lost)}" if lost else ""
        return result, f"{result.ended}: {', '.join(sorted(result.failed_kinds('supervisor'))) or result.why}"

    def _stop_if_hopeless(self, role: str, kinds: Set[str], why: str = "") -> None:
        """No further question is begun: its calls would fail alike, and the others would be paid for."""
        if hopeless := sorted(kinds & HOPELESS):
            told = f"the {role}'s calls fail by {hopeless[0]}"
            self._stopped = self._stopped or (f"{told}: {why}" if why else told)

    async def _baseline(self, name: baselines.Baseline, own: AskedOnce, posed: Posed, score: Scoring) -> Answered:
        if name == "no_model":
            found = await score(baselines.without_model(posed), "")
            return found.model_copy(update=_cost(Usage(0, 0), 0.0))
        paragraphs = baselines.shown(name, posed, baselines.window(self._config.worker_ctx_k))
        asked = baselines.messages(posed, paragraphs)
        try:
            reads = partial(baselines.read, paragraphs=paragraphs)
            answer, said = await self._call(partial(own.ask, name, self._models.worker, asked, reads))
        except ModelFailure as failure:
            self._stop_if_hopeless("worker", {failure.kind})
            return await score(None, f"failed: {failure.kind}")
        found = await score(said, "")
        return found.model_copy(update=_cost(answer.usage, answer.usd))

    async def _scored(self, own: AskedOnce, example: Example, said: Prediction | None, failure: str) -> Answered:
        if failure:
            return Answered(failure=failure)
        if said is None:
            return Answered(score=0.0, answer_f1=0.0, evidence_f1=0.0)
        official = official_score.score(said, example.references)
        score, judge_failure = await self._correct(own, example, said)
        return Answered(
            prediction=said.answer,
            evidence=said.evidence,
            answer_f1=official.answer_f1,
            evidence_f1=official.evidence_f1,
            kind=official.kind,
            score=score,
            judge_failure=judge_failure,
        )

    async def _correct(self, own: AskedOnce, example: Example, said: Prediction) -> tuple[float | None, str]:
        """Whether it is correct, as 1 or 0, or why that is not known."""
        if self._models.judge is None:
            given = official_score.normalized(said.answer)
            return float(any(given == official_score.normalized(one.answer) for one in example.references)), ""
        asked = correctness_judge.messages(example, said)
        try:
            reads = correctness_judge.verdict
            _, correct = await self._call(partial(own.ask, "judge", self._models.judge, asked, reads))
            return float(correct), ""
        except ModelFailure as failure:
            self._stop_if_hopeless("judge", {failure.kind})
            return None, failure.kind
        except UnreadableVerdictError as error:
            return None, str(error)

    async def _call(self, call: Callable[[], _Result]) -> _Result:
        found: _Result = await asyncio.wrap_future(self._threads.submit(call))
        return found


def _cost(usage: Usage | None, usd: float | None) -> dict[str, Any]:
    """Of calls; `usage` None: one did not say."""
    if usage is None:
        return {"tokens_in": None, "tokens_out": None, "usd": usd}
    return {"tokens_in": usage.input_tokens, "tokens_out": usage.output_tokens, "usd": usd}


def _said(one: Outcome) -> str:
    said = one.supervised
    how = said.failure or f"answer F1 {said.answer_f1:.2f}, evidence F1 {said.evidence_f1:.2f}"
    return f"{one.id[:12]:12}  {one.ended:10} {one.iterations:2} turns  {how}"
