"""Asks a judge to score a group of completions. It returns one score per completion or raises ModelFailure."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from oven_core.protocol.committee_requests import JudgeHealth, ScoreRequest
from oven_llm import providers
from oven_llm.judges import rubric_prompts
from oven_llm.judges.adversarial_controls import REFERENCE, Control, Controls
from oven_llm.judges.rubric_prompts import Rubric
from oven_llm.judges.sanitize import LIMIT, is_degenerate, shown, visible
from oven_llm.judges.self_checks import SelfChecks
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, LanguageModel, ModelReply
from oven_llm.providers.failures import UNUSABLE, Kind, ModelFailure
from oven_llm.providers.genai_telemetry import ModelCall, OnCall
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally
from oven_runs.settings.committee_members import read_rubric
from oven_runs.settings.committee_settings import MemberSettings, Role
from oven_runs.settings.judge_providers import Catalogue, ModelEndpoint, endpoint_of, key_of

log = logging.getLogger("oven.member")

MAX_QUESTIONS: Final = 3
"""Maximum requests for a group whose replies contain no usable verdict."""


@dataclass(frozen=True, slots=True)
class Watching:
    """Settings for a member's judges: text limits and checks."""

    characters: int = LIMIT
    """Maximum characters of a text that a judge sees."""
    swapped: float = 0.0
    """See SelfChecks, as for `asked_again_every`."""
    asked_again_every: int = 0
    store: Path | None = None
    """Path of the JSON file for the results of controls, without suffixes. None: they are not saved."""

    def controls(self, judge: str, swap: int = 0, *, of_content: bool = True) -> Controls:
        """Return the controls for the judge of the member's `swap`-th swap. Each swap has its own file, because an
        earlier judge may still have active requests."""
        path = self.store.with_name(f"{self.store.name}.{swap}.controls") if self.store else None
        return Controls(f"{judge} {swap}", path, of_content=of_content)


CONTROLS_ONLY: Final = Watching()
"""Checks with controls only: no group is scored twice, and nothing is saved."""


class Judge:
    """A model that scores completions by a rubric."""

    def __init__(
        self,
        rubric: Rubric | Role,
        model: LanguageModel,
        controls: Controls | None = None,
        on_call: OnCall | None = None,
        *,
        watching: Watching = CONTROLS_ONLY,
    ) -> None:
        """`rubric`: a role's name stands for its standard rubric. `controls`: hidden tests; None: no tests."""
        self.model = model
        self.controls = controls
        self.checks = SelfChecks(self._verdict, watching.swapped, watching.asked_again_every)
        self.rubric = rubric if isinstance(rubric, Rubric) else Rubric(rubric)
        self._on_call = on_call
        self._characters = watching.characters
        self._cut = 0

    @property
    def trusted(self) -> bool:
        """Whether the judge passed its last control, or had none."""
        return self.controls is None or not self.controls.suspects

    @property
    def quarantined(self) -> bool:
        return self.controls is not None and self.controls.quarantined

    def instructions(self, request: ScoreRequest) -> str:
        """Return the system prompt: the rubric and a description of the training."""
        return rubric_prompts.question(self.rubric, request.policy, "", {}, domain=request.domain).text_of("system")

    async def score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        """Return a score from 0 to 1 for each completion id. Raises ModelFailure; the caller bounds the time.

        Equal texts are shown once and share their score, because a judge's noise would tell them apart. A completion
        that is empty, invisible or degenerate (`is_degenerate`) scores 0 and is not shown. Texts are shown in the order
        of their ids, which are random.
        """
        tally.absorb(self.checks.aside)
        tally.last_fault = None
        try:
            return await self._scored(request, tally)
        finally:
            tally.health = self.health

    async def _scored(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        prompt = self._shown(request.prompt)
        texts = {completion.id: self._shown(completion.text) for completion in request.completions}
        first: dict[str, str] = {}  # text → the id that it is shown with
        for key in sorted(texts):
            if texts[key] and not is_degenerate(texts[key], prompt):
                first.setdefault(texts[key], key)
        if not first:
            return dict.fromkeys(texts, 0.0)
        candidates = {key: text for text, key in first.items()}
        control = self._control(bool(request.reference))
        if control is None:
            scores = await self._verdict(request, candidates, tally)
        else:
            scores = await self._tested(request, candidates, control, tally)
        self.checks.saw(request, candidates, scores)
        tally.reasons |= {key: tally.reasons.get(first[text], "") for key, text in texts.items() if text in first}
        return {key: scores[first[text]] if text in first else 0.0 for key, text in texts.items()}

    @property
    def health(self) -> JudgeHealth:
        """The results of the checks so far."""
        controls, findings = self.controls, self.checks.findings
        return JudgeHealth(
            controls=controls.count if controls else 0,
            controls_failed=controls.failed if controls else 0,
            quarantined=controls.quarantined if controls else False,
            order_flips=findings.flips,
            change_p=findings.p,
            changes=findings.changes,
            cut_texts=self._cut,
        )

    async def close(self) -> None:
        """End the checks and the connection."""
        await self.checks.close()
        await self.model.close()

    def _shown(self, text: str) -> str:
        self._cut += len(visible(text).strip()) > self._characters
        return shown(text, self._characters)

    def _control(self, has_reference: bool) -> Control | None:
        if self.controls is None:
            return None
        control = self.controls.due(has_reference)
        if control is None and self.controls.quarantined:
            raise ModelFailure("quarantined", "it scored known answers wrongly twice in a row")
        return control

    async def _tested(
        self, request: ScoreRequest, candidates: Mapping[str, str], control: Control, tally: CallTally
    ) -> dict[str, float]:
        """Return the candidates' scores. Known answers are hidden among them under similar ids."""
        assert self.controls is not None
        length = len(next(iter(candidates)))
        hidden: dict[str, str] = {}  # known answer → the id that it is shown with
        shown_as = {text: key for key, text in candidates.items()}
        known = {attack.id: self._shown(attack.text) for attack in control.attacks}
        if control.reference:
            known[REFERENCE] = self._shown(request.reference)
        for name, text in known.items():
            hidden[name] = shown_as.setdefault(text, _unused(length, shown_as.values()))
        scores = await self._verdict(request, dict(sorted((key, text) for text, key in shown_as.items())), tally)
        real = {key: scores[key] for key in candidates}
        # A completion that equals an attack is no standard to compare the attack with.
        honest = [score for key, score in real.items() if key not in {hidden[attack.id] for attack in control.attacks}]
        self._check(control, {name: scores[key] for name, key in hidden.items()}, max(honest, default=0.0))
        return real

    def _check(self, control: Control, known: Mapping[str, float], best: float) -> None:
        assert self.controls is not None
        before = self.controls.quarantined
        if self.controls.saw(control, known, best):
            missed = ", ".join(self.controls.suspects)
            if self.controls.quarantined:
                log.error("quarantined: it scored known answers wrongly twice in a row (%s)", missed)
            else:
                log.warning("it scored known answers wrongly (%s); the next group tests it again", missed)
            raise ModelFailure("fooled", "it scored a known answer wrongly")
        if before and not self.controls.quarantined:
            log.warning("out of quarantine: it passed what it had failed on")

    async def _verdict(
        self, request: ScoreRequest, candidates: Mapping[str, str], tally: CallTally
    ) -> dict[str, float]:
        """Ask about the candidates in this order, and again if the reply has no usable verdict. Raises ModelFailure."""
        complaint, prompt = "", shown(request.prompt, self._characters)
        for retries_left in range(MAX_QUESTIONS - 1, -1, -1):
            question = rubric_prompts.question(
                self.rubric, request.policy, prompt, candidates, complaint, request.domain
            )
            try:
                return await self._ask(question, candidates, request.deadline_s, tally)
            except ModelFailure as failure:
                if failure.kind not in UNUSABLE or not retries_left:
                    raise
                complaint = failure.detail
        raise AssertionError  # the last iteration returns or raises

    async def _ask(
        self, question: Conversation, candidates: Mapping[str, str], timeout_s: float, tally: CallTally
    ) -> dict[str, float]:
        started = time.time_ns()
        reply: ModelReply | None = None
        error: Kind | None = None
        scores: dict[str, float] = {}
        try:
            reply = await self.model.ask(question, timeout_s)
            reply.require_complete()
            scores = rubric_prompts.read_verdict(reply.text, candidates, tally.reasons)
            return scores
        except ModelFailure as failure:
            error = failure.kind
            if error in UNUSABLE:
                tally.fail_attempt(error)  # faults on the way were recorded for each attempt
            raise
        except asyncio.CancelledError:
            error = "timeout"
            raise
        finally:
            if self._on_call is not None and error != "budget":  # otherwise no call was made
                record = ModelCall(
                    self.model,
                    reply,
                    error,
                    started,
                    tally.context,
                    self.rubric.role,
                    scores,
                )
                try:
                    self._on_call(record)
                except Exception as problem:
                    log.error("the listener to calls raised %s", type(problem).__name__)


def _unused(length: int, used: Collection[str]) -> str:
    """Return an unused random id of this length, or longer if all short ids are in use."""
    while (drawn := secrets.token_hex(32)[:length]) in used:
        length += 1
    return drawn


@dataclass(frozen=True)
class ConfiguredJudge:
    """A judge's complete configuration."""

    name: str
    model: ModelEndpoint
    key: str
    rubric: Rubric
    top_logprobs: int
    """Alternatives per token to request; 0: none."""
    watching: Watching = CONTROLS_ONLY

    @classmethod
    def look_up(
        cls,
        name: str,
        member: MemberSettings,
        catalogue: Catalogue,
        environ: Mapping[str, str] = os.environ,
        watching: Watching = CONTROLS_ONLY,
    ) -> ConfiguredJudge:
        """Raises ConfigError for an unknown provider and for a missing address, key or rubric."""
        model = endpoint_of(name, member, catalogue)
        text = read_rubric(name, member.rubric) if member.rubric else ""
        rubric = Rubric(member.role, member.domain, text)
        top_logprobs = member.top_logprobs if member.logprobs else 0
        return cls(name, model, key_of(name, model, environ), rubric, top_logprobs, watching)

    def connect(self, budget: Budget | None = None, account: str = "") -> RemoteModel:
        """Import the SDK without sending a request. Raises ConfigError as `providers.connect` does."""
        return providers.connect(self.name, self.model, self.key, self.top_logprobs, budget, account)

    def judge(self, endpoint: RemoteModel, swap: int = 0, on_call: OnCall | None = None) -> Judge:
        """Return a judge that calls `endpoint`, with all its checks. `swap` counts the member's swaps."""
        judge = f"{self.model.provider} {self.model.base_url} {self.model.model} {self.rubric.role}"
        # A user's rubric may score something other than the content, as the role style does.
        of_content = self.rubric.role != "style" and not self.rubric.text
        controls = self.watching.controls(judge, swap, of_content=of_content)
        return Judge(self.rubric, endpoint, controls, on_call, watching=self.watching)

    def __repr__(self) -> str:
        return f"ConfiguredJudge({self.name!r}, {self.model!r})"  # without the key
