"""One judge and one group: from a request to a score for each completion, or a JudgeFailure."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping

from oven_agents.judges import prompts, verdict
from oven_agents.judges.adversarial_controls import Controls
from oven_agents.judges.failures import UNUSABLE, JudgeFailure, Kind
from oven_agents.judges.providers.provider import Answer, Provider, Question
from oven_agents.judges.sanitize import shown
from oven_agents.judges.usage import Ledger, OnCall
from oven_controller.protocol.requests import ScoreRequest
from oven_controller.settings.model import Role
from oven_controller.telemetry.genai import CallRecord

log = logging.getLogger("oven.member")

ATTEMPT_SHARE = 2 / 3
"""Of the request's time for one HTTP attempt: an answer that got lost leaves a third for another."""
ASKED = 3
"""Times that a question is put, at most, to one that answers without a usable verdict."""


class Judge:
    """`rubric`: a role's name stands for its own. `controls` None: no known-bad answers are slipped in."""

    def __init__(
        self,
        rubric: prompts.Rubric | Role,
        provider: Provider,
        controls: Controls | None = None,
        on_call: OnCall | None = None,
    ) -> None:
        self.provider = provider
        self.controls = controls
        self.rubric = rubric if isinstance(rubric, prompts.Rubric) else prompts.Rubric(rubric)
        self._on_call = on_call

    @property
    def trusted(self) -> bool:
        """Whether it saw through the last known-bad answer that it was shown, or was shown none."""
        return self.controls is None or not self.controls.suspected

    @property
    def quarantined(self) -> bool:
        return self.controls is not None and self.controls.quarantined

    def instructions(self, request: ScoreRequest) -> str:
        """What it is told beside a group: its rubric, and what is trained."""
        return prompts.question(self.rubric, request.policy, "", {}, domain=request.domain).system

    async def score(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        """id → 0..1, for each completion of the request. Raises JudgeFailure; the caller bounds the time.

        Equal texts are shown once and share their score (a judge's noise would tell them apart). An empty completion,
        or one of invisible characters only, is 0 by rule, and is not shown: there is nothing to judge in it. Texts are
        shown in the order of their ids, which are random.
        """
        texts = {completion.id: shown(completion.text) for completion in request.completions}
        first: dict[str, str] = {}  # text → the id that it is shown under
        for key in sorted(texts):
            if texts[key]:
                first.setdefault(texts[key], key)
        if not first:
            return dict.fromkeys(texts, 0.0)
        control = self._control()
        candidates = {key: text for text, key in first.items()}
        hidden = ""
        if control is not None and control not in first:
            hidden = secrets.token_hex(32)[: len(next(iter(candidates)))]
            candidates = dict(sorted({**candidates, hidden: control}.items()))
        scores = await self._verdict(request, candidates, ledger)
        if hidden:
            self._check(scores.pop(hidden), max(scores.values()))
        return {key: scores[first[text]] if text else 0.0 for key, text in texts.items()}

    def _control(self) -> str | None:
        if self.controls is None:
            return None
        control = self.controls.due()
        if control is None and self.controls.quarantined:
            raise JudgeFailure("quarantined", "it preferred a known-bad answer twice in a row")
        return control

    def _check(self, bad: float, best: float) -> None:
        assert self.controls is not None
        before = self.controls.quarantined
        if self.controls.saw(bad, best):
            if self.controls.quarantined:
                log.error("quarantined: it preferred a known-bad answer twice in a row")
            raise JudgeFailure("fooled", "it preferred a known-bad answer to all real ones")
        if before:
            log.warning("out of quarantine: it saw through a known-bad answer")

    async def _verdict(self, request: ScoreRequest, candidates: Mapping[str, str], ledger: Ledger) -> dict[str, float]:
        """An answer without a usable verdict is asked for again, with what was wrong with it."""
        attempt_s = ATTEMPT_SHARE * request.deadline_s
        complaint = ""
        for left in range(ASKED - 1, -1, -1):
            question = prompts.question(
                self.rubric, request.policy, request.prompt, candidates, complaint, request.domain
            )
            try:
                return await self._ask(question, candidates, attempt_s, ledger)
            except JudgeFailure as failure:
                if failure.kind not in UNUSABLE or not left:
                    raise
                complaint = failure.detail
        raise AssertionError  # the last turn returns or raises

    async def _ask(
        self, question: Question, candidates: Mapping[str, str], attempt_s: float, ledger: Ledger
    ) -> dict[str, float]:
        started, before = time.time_ns(), ledger.attempts
        answer: Answer | None = None
        error: Kind | None = None
        scores: dict[str, float] = {}
        try:
            answer = await self.provider.ask(question, attempt_s)
            ledger.usages.append(answer.usage)  # before it is read: it was billed, whatever it is worth
            if answer.outcome != "complete":
                raise JudgeFailure(answer.outcome, f"the answer ended with {answer.finish_reason}")
            scores = verdict.read(answer.text, candidates)
            return scores
        except JudgeFailure as failure:
            error = failure.kind
            if error in UNUSABLE:
                ledger.fault(error)  # what went wrong on the way there was entered attempt by attempt
            raise
        except asyncio.CancelledError:
            error = "timeout"
            raise
        finally:
            if error != "budget":  # no call was made
                resends = max(0, ledger.attempts - before - 1)
                self._record(answer, error, scores, resends, started, ledger.context)

    def _record(
        self,
        answer: Answer | None,
        error: Kind | None,
        scores: Mapping[str, float],
        resends: int,
        started_ns: int,
        context: str,
    ) -> None:
        if self._on_call is None:
            return
        usage = answer.usage if answer is not None else None
        record = CallRecord(
            operation="chat",
            provider=self.provider.name,
            request_model=self.provider.model,
            response_model=answer.model if answer is not None else "",
            input_tokens=usage.input_tokens if usage is not None else None,
            output_tokens=usage.output_tokens if usage is not None else None,
            finish_reason=answer.finish_reason if answer is not None else "",
            error_type=error,
            resends=resends,
            started_ns=started_ns,
            ended_ns=time.time_ns(),
            context=context,
            cost_usd=answer.cost_usd if answer is not None else None,
            evaluation=self.rubric.role,
            scores=scores,
        )
        try:
            self._on_call(record)
        except Exception as problem:
            log.error("the listener to calls raised %s", type(problem).__name__)
