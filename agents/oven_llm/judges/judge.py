"""One judge and one group: from a request to a score for each completion, or a ModelFailure."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Mapping

from oven_core.protocol.committee_requests import JudgeHealth, ScoreRequest
from oven_llm.judges import rubric_prompts, verdict
from oven_llm.judges.adversarial_controls import REFERENCE, Control, Controls
from oven_llm.judges.degenerate_text import is_degenerate
from oven_llm.judges.rubric_prompts import Rubric
from oven_llm.judges.sanitize import shown, visible
from oven_llm.judges.self_checks import SelfChecks
from oven_llm.judges.watching import CONTROLS_ONLY, Watching
from oven_llm.providers.call_records import call_record
from oven_llm.providers.failures import UNUSABLE, Kind, ModelFailure
from oven_llm.providers.provider import Answer, Provider, Question
from oven_llm.providers.usage import Ledger, OnCall
from oven_runs.settings.committee_settings import Role

log = logging.getLogger("oven.member")

ATTEMPT_SHARE = 2 / 3
"""Of the request's time for one HTTP attempt: an answer that got lost leaves a third for another."""
ASKED = 3
"""Times that a question is put, at most, to one that answers without a usable verdict."""


class Judge:
    """`rubric`: a role's name stands for its own. `controls` None: no answers of known worth are slipped in."""

    def __init__(
        self,
        rubric: Rubric | Role,
        provider: Provider,
        controls: Controls | None = None,
        on_call: OnCall | None = None,
        *,
        watching: Watching = CONTROLS_ONLY,
    ) -> None:
        self.provider = provider
        self.controls = controls
        self.checks = SelfChecks(self._verdict, watching.swapped, watching.asked_again_every)
        self.rubric = rubric if isinstance(rubric, Rubric) else Rubric(rubric)
        self._on_call = on_call
        self._characters = watching.characters
        self._cut = 0

    @property
    def trusted(self) -> bool:
        """Whether it saw through the last known-bad answer that it was shown, or was shown none."""
        return self.controls is None or not self.controls.suspected

    @property
    def quarantined(self) -> bool:
        return self.controls is not None and self.controls.quarantined

    def instructions(self, request: ScoreRequest) -> str:
        """What it is told beside a group: its rubric, and what is trained."""
        return rubric_prompts.question(self.rubric, request.policy, "", {}, domain=request.domain).system

    async def score(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        """id → 0..1, for each completion of the request. Raises ModelFailure; the caller bounds the time.

        Equal texts are shown once and share their score (a judge's noise would tell them apart). A completion that is
        empty, of invisible characters only or degenerate (degenerate_text.py) is 0 by rule, and is not shown: there is
        nothing to judge in it. Texts are shown in the order of their ids, which are random.
        """
        ledger.absorb(self.checks.aside)
        try:
            return await self._scored(request, ledger)
        finally:
            ledger.health = self.health

    async def _scored(self, request: ScoreRequest, ledger: Ledger) -> dict[str, float]:
        prompt = self._shown(request.prompt)
        texts = {completion.id: self._shown(completion.text) for completion in request.completions}
        first: dict[str, str] = {}  # text → the id that it is shown under
        for key in sorted(texts):
            if texts[key] and not is_degenerate(texts[key], prompt):
                first.setdefault(texts[key], key)
        if not first:
            return dict.fromkeys(texts, 0.0)
        candidates = {key: text for text, key in first.items()}
        control = self._control(bool(request.reference))
        if control is None:
            scores = await self._verdict(request, candidates, ledger)
        else:
            scores = await self._tested(request, candidates, control, ledger)
        self.checks.saw(request, candidates, scores)
        ledger.reasons |= {key: ledger.reasons.get(first[text], "") for key, text in texts.items() if text in first}
        return {key: scores[first[text]] if text in first else 0.0 for key, text in texts.items()}

    @property
    def health(self) -> JudgeHealth:
        """What was found out about it so far."""
        controls, found = self.controls, self.checks.found
        return JudgeHealth(
            controls=controls.count if controls else 0,
            controls_failed=controls.failed if controls else 0,
            quarantined=controls.quarantined if controls else False,
            order_flips=found.flips,
            change_p=found.p,
            changes=found.changes,
            cut_texts=self._cut,
        )

    async def close(self) -> None:
        """Nothing more is asked of the provider."""
        await self.checks.close()
        await self.provider.close()

    def _shown(self, text: str) -> str:
        self._cut += len(visible(text).strip()) > self._characters
        return shown(text, self._characters)

    def _control(self, has_reference: bool) -> Control | None:
        if self.controls is None:
            return None
        control = self.controls.due(has_reference)
        if control is None and self.controls.quarantined:
            raise ModelFailure("quarantined", "it got answers of known worth wrong twice in a row")
        return control

    async def _tested(
        self, request: ScoreRequest, candidates: Mapping[str, str], control: Control, ledger: Ledger
    ) -> dict[str, float]:
        """The candidates' scores, asked for with answers of known worth among them, under ids like theirs."""
        assert self.controls is not None
        length = len(next(iter(candidates)))
        hidden: dict[str, str] = {}  # known answer → the id that it is shown under
        shown_as = {text: key for key, text in candidates.items()}
        known = {attack.id: self._shown(attack.text) for attack in control.attacks}
        if control.reference:
            known[REFERENCE] = self._shown(request.reference)
        for name, text in known.items():
            hidden[name] = shown_as.setdefault(text, _unused(length, shown_as.values()))
        scores = await self._verdict(request, dict(sorted((key, text) for text, key in shown_as.items())), ledger)
        real = {key: scores[key] for key in candidates}
        # A policy that gives an attack as its answer is not a good answer to hold the attack against.
        honest = [score for key, score in real.items() if key not in {hidden[attack.id] for attack in control.attacks}]
        self._check(control, {name: scores[key] for name, key in hidden.items()}, max(honest, default=0.0))
        return real

    def _check(self, control: Control, known: Mapping[str, float], best: float) -> None:
        assert self.controls is not None
        before = self.controls.quarantined
        if self.controls.saw(control, known, best):
            missed = ", ".join(self.controls.suspects)
            if self.controls.quarantined:
                log.error("quarantined: it got answers of known worth wrong twice in a row (%s)", missed)
            else:
                log.warning("it got answers of known worth wrong (%s); the next group tests it again", missed)
            raise ModelFailure("fooled", "it got an answer of known worth wrong")
        if before and not self.controls.quarantined:
            log.warning("out of quarantine: it passed what it had failed on")

    async def _verdict(self, request: ScoreRequest, candidates: Mapping[str, str], ledger: Ledger) -> dict[str, float]:
        """id → score of each candidate, shown in this order. An answer without a usable verdict is asked for again,
        with what was wrong with it. Raises ModelFailure."""
        attempt_s = ATTEMPT_SHARE * request.deadline_s
        complaint, prompt = "", shown(request.prompt, self._characters)
        for left in range(ASKED - 1, -1, -1):
            question = rubric_prompts.question(
                self.rubric, request.policy, prompt, candidates, complaint, request.domain
            )
            try:
                return await self._ask(question, candidates, attempt_s, ledger)
            except ModelFailure as failure:
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
                raise ModelFailure(answer.outcome, f"the answer ended with {answer.finish_reason}")
            scores = verdict.read(answer.text, candidates, ledger.reasons)
            return scores
        except ModelFailure as failure:
            error = failure.kind
            if error in UNUSABLE:
                ledger.fault(error)  # what went wrong on the way there was entered attempt by attempt
            raise
        except asyncio.CancelledError:
            error = "timeout"
            raise
        finally:
            if error != "budget":  # no call was made
                resends = ledger.attempts - before - 1
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
        record = call_record(
            self.provider,
            answer,
            error,
            resends=resends,
            started_ns=started_ns,
            cost_usd=answer.cost_usd if answer is not None else None,
            context=context,
            evaluation=self.rubric.role,
            scores=scores,
        )
        try:
            self._on_call(record)
        except Exception as problem:
            log.error("the listener to calls raised %s", type(problem).__name__)


def _unused(length: int, taken: Collection[str]) -> str:
    """A random id of this length; a longer one where short ids leave no room, since two texts must not share one."""
    while (drawn := secrets.token_hex(32)[:length]) in taken:
        length += 1
    return drawn
