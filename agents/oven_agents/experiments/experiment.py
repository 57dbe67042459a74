"""A measured run: each question is put to the supervisor and to the baselines, scored, and kept once it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from oven_agents.experiments import baselines, correctness_judge
from oven_agents.experiments.asked_once import AskedOnce
from oven_agents.experiments.correctness_judge import UnreadableVerdictError
from oven_agents.experiments.run_folder import Answered, Outcome, RunConfig, RunFolder
from oven_agents.experiments.sample import Posed
from oven_agents.providers.failures import ModelFailure
from oven_agents.supervisor.call_threads import CallThreads
from oven_agents.supervisor.models import LMResponse, ModelHandler
from oven_agents.supervisor.orchestrator import RunResult, arun
from oven_agents.tasks import official_score
from oven_agents.tasks.example import Example, Prediction, prediction_of
from oven_controller.errors import ConfigError, ProcessError, reason

_Result = TypeVar("_Result")
Scoring = Callable[[Prediction | None, str], Awaitable[Answered]]
"""(answer, why there is none) → the scored answer."""

OWN_CALLS: Final = "own_calls.jsonl"
"""The file with what the experiment itself asked: the worker for baselines, and the judge."""
ANSWERED: Final = ("final", "forced")
"""How a supervisor's run ends that has an answer."""
NO_ANSWER: Final = ("iterations", "errors")
"""How one ends that has none by its own doing: a wrong answer, and not a failure."""
HOPELESS: Final = ("auth", "not_found", "not_configured", "budget")
"""Kinds of failure of the supervisor's that the next question would meet, too."""


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
        self._stopped = ""

    def run(self, questions: Sequence[Posed]) -> Done:
        """Raises ConfigError where the folder or the sandbox cannot be used, OSError where nothing can be written."""
        try:
            asyncio.run(self._all(questions))
        finally:
            self._threads.close()
            self._folder.write_tables(sorted(self._outcomes.items()))
        return Done(self._outcomes, self._stopped)

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
        known = self._folder.outcome(number)
        if known is not None and known.id != posed.example.id:
            raise ConfigError(f"{self._folder.example(number)} holds another question, {known.id}; name another folder")
        if known is None or not known.settled:
            known = await self._asked(number, posed)
            self._folder.keep(number, known)
        self._outcomes[number] = known
        self._folder.write_tables(sorted(self._outcomes.items()))
        self._tell(f"{len(self._outcomes)}/{of}  {_said(known)}")

    async def _asked(self, number: int, posed: Posed) -> Outcome:
        folder = self._folder.example(number)
        folder.mkdir(exist_ok=True)
        result, failure = await self._supervised(number, posed)
        own = AskedOnce(folder / OWN_CALLS)
        score = partial(self._scored, own, posed.example)
        answer = prediction_of(result.answer) if result is not None and result.ended in ANSWERED else None
        supervised = await score(answer, failure)
        if result is not None:
            used = (result.supervisor_usage, result.worker_usage)
            tokens = {"tokens_in": sum(one.input_tokens for one in used)}
            tokens["tokens_out"] = sum(one.output_tokens for one in used)
            supervised = supervised.model_copy(update={**tokens, "usd": result.cost_usd})
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
        """The supervisor's run, and why it has no answer, where that is not its own doing."""
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
            )
        except ProcessError as error:
            return None, f"sandbox: {reason(error)}"
        kinds = {name.removeprefix("supervisor ") for name in result.failures if name.startswith("supervisor ")}
        if result.ended in (*ANSWERED, *NO_ANSWER):
            return result, ""
        if hopeless := sorted(kinds & set(HOPELESS)):
            self._stopped = self._stopped or f"the supervisor answers {hopeless[0]}: {result.why}"
        return result, f"{result.ended}: {', '.join(sorted(kinds)) or result.why}"

    async def _baseline(self, name: baselines.Baseline, own: AskedOnce, posed: Posed, score: Scoring) -> Answered:
        if name == "no_model":
            return await score(baselines.without_model(posed), "")
        paragraphs = baselines.shown(name, posed, baselines.window(self._config.worker_ctx_k))
        asked = baselines.messages(posed, paragraphs)
        try:
            answer: LMResponse = await self._call(partial(own.ask, name, self._models.worker, asked))
        except ModelFailure as failure:
            return await score(None, f"failed: {failure.kind}")
        found = await score(baselines.read(answer.text, paragraphs), "")
        return found.model_copy(update=_cost(answer))

    async def _scored(self, own: AskedOnce, example: Example, said: Prediction | None, failure: str) -> Answered:
        if said is None:
            return Answered(score=None if failure else 0.0, failure=failure)
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
            answer: LMResponse = await self._call(partial(own.ask, "judge", self._models.judge, asked))
            return float(correctness_judge.verdict(answer.text)), ""
        except ModelFailure as failure:
            return None, failure.kind
        except UnreadableVerdictError as error:
            return None, str(error)

    async def _call(self, call: Callable[[], _Result]) -> _Result:
        found: _Result = await asyncio.wrap_future(self._threads.submit(call))
        return found


def _cost(answer: LMResponse) -> dict[str, Any]:
    usage = answer.usage
    tokens = {"tokens_in": usage.input_tokens, "tokens_out": usage.output_tokens} if usage is not None else {}
    return {**tokens, "usd": answer.usd}


def _said(one: Outcome) -> str:
    said = one.supervised
    how = said.failure or f"answer F1 {said.answer_f1:.2f}, evidence F1 {said.evidence_f1:.2f}"
    return f"{one.id[:12]:12}  {one.ended:10} {one.iterations:2} turns  {how}"
