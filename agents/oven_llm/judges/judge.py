"""Scores groups of completions with a language model as a judge."""

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
from oven_llm.judges.sanitize import MAX_CHARACTERS, is_degenerate, prepare, visible_text
from oven_llm.judges.self_checks import SelfChecks
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, LanguageModel, ModelReply
from oven_llm.providers.failures import UNUSABLE_REPLY_KINDS, FailureKind, ModelFailure
from oven_llm.providers.genai_telemetry import ModelCall, OnCall
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import CallTally
from oven_runs.settings.committee_members import read_rubric
from oven_runs.settings.committee_settings import MemberSettings, Role
from oven_runs.settings.judge_providers import Catalogue, ModelEndpoint, endpoint_of, key_of

log = logging.getLogger("oven.member")

MAX_REQUESTS: Final = 3
"""Maximum requests for one group while the replies contain no usable verdict."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Settings of a member's judges: text limits and checks."""

    max_characters: int = MAX_CHARACTERS
    """Maximum characters of a text that a judge sees."""
    reversed_share: float = 0.0
    """Share of groups that are scored again in reverse order."""
    rescore_interval: int = 0
    """Number of scored groups after which the judge rescores old groups (self_checks.py). If it is 0, it never does."""
    results: Path | None = None
    """Path of the file for the results of controls, without its suffixes. If it is None, they are not saved."""

    def create_controls(self, identity: str, swap_count: int = 0, *, scores_content: bool = True) -> Controls:
        """Return the controls for a judge. Each swap has its own file, because the old judge may still be active."""
        path = self.results.with_name(f"{self.results.name}.{swap_count}.controls") if self.results else None
        return Controls(f"{identity} {swap_count}", path, scores_content=scores_content)


CONTROLS_ONLY: Final = CheckSettings()
"""Settings for controls only: no group is scored twice, and no results are saved."""


class Judge:
    """A model that scores completions by a rubric."""

    def __init__(
        self,
        rubric: Rubric | Role,
        model: LanguageModel,
        controls: Controls | None = None,
        on_call: OnCall | None = None,
        *,
        check_settings: CheckSettings = CONTROLS_ONLY,
    ) -> None:
        """Create a judge. A role stands for its standard rubric. Without `controls`, there are no hidden tests."""
        self.model = model
        self.controls = controls
        self.checks = SelfChecks(self._request_scores, check_settings.reversed_share, check_settings.rescore_interval)
        self.rubric = rubric if isinstance(rubric, Rubric) else Rubric(rubric)
        self._on_call = on_call
        self._max_characters = check_settings.max_characters
        self._shortened_count = 0

    @property
    def is_trusted(self) -> bool:
        """Whether the judge passed its last control, or had none."""
        return self.controls is None or not self.controls.suspects

    @property
    def is_quarantined(self) -> bool:
        """Whether the judge may only score groups that contain a control."""
        return self.controls is not None and self.controls.is_quarantined

    def build_instructions(self, request: ScoreRequest) -> str:
        """Return the system prompt, which contains the rubric and a description of the training."""
        conversation = rubric_prompts.build_request(self.rubric, request.policy, "", {}, domain=request.domain)
        return conversation.text_of("system")

    async def score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        """Return a score from 0 to 1 for each completion id. Raises ModelFailure. The caller must apply a timeout.
        Equal texts are shown once and share one score, because a judge's noise would give them different scores.
        Completions that are empty, invisible or degenerate (`is_degenerate`) are not shown and score 0. Texts are shown
        in the order of their ids, which are random."""
        tally.absorb(self.checks.unreported_tally)
        tally.last_failure = None  # a failed check must not explain a later timeout of this request
        try:
            return await self._score(request, tally)
        finally:
            tally.health = self.health

    async def _score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        prompt = self._prepare(request.prompt)
        texts = {completion.id: self._prepare(completion.text) for completion in request.completions}
        shown_ids: dict[str, str] = {}  # by text
        for id_ in sorted(texts):
            if texts[id_] and not is_degenerate(texts[id_], prompt):
                shown_ids.setdefault(texts[id_], id_)
        if not shown_ids:
            return dict.fromkeys(texts, 0.0)
        candidates = {id_: text for text, id_ in shown_ids.items()}
        control = self._get_next_control(bool(request.reference))
        if control is None:
            scores = await self._request_scores(request, candidates, tally)
        else:
            scores = await self._score_with_control(request, candidates, control, tally)
        self.checks.record_scores(request, candidates, scores)
        result = dict.fromkeys(texts, 0.0)
        for id_, text in texts.items():
            if text in shown_ids:
                result[id_] = scores[shown_ids[text]]
                tally.reasons[id_] = tally.reasons.get(shown_ids[text], "")
        return result

    @property
    def health(self) -> JudgeHealth:
        """The results of the checks so far."""
        controls, findings = self.controls, self.checks.findings
        return JudgeHealth(
            controls=controls.count if controls else 0,
            controls_failed=controls.failure_count if controls else 0,
            quarantined=controls.is_quarantined if controls else False,
            order_flips=findings.flipped_share,
            change_p=findings.change_p,
            changes=findings.change_count,
            cut_texts=self._shortened_count,
        )

    async def close(self) -> None:
        """Stop the checks and close the connection."""
        await self.checks.close()
        await self.model.close()

    def _prepare(self, text: str) -> str:
        """Return `text` as the judge sees it, and count it if it is shortened."""
        if len(visible_text(text).strip()) > self._max_characters:
            self._shortened_count += 1
        return prepare(text, self._max_characters)

    def _get_next_control(self, has_reference: bool) -> Control | None:
        if self.controls is None:
            return None
        control = self.controls.next_control(has_reference)
        if control is None and self.controls.is_quarantined:
            raise ModelFailure("quarantined", "the judge failed its hidden tests twice in a row")
        return control

    async def _score_with_control(
        self, request: ScoreRequest, candidates: Mapping[str, str], control: Control, tally: CallTally
    ) -> dict[str, float]:
        """Return the candidates' scores. The control's texts are hidden among the candidates under similar ids."""
        assert self.controls is not None
        id_length = len(next(iter(candidates)))
        test_texts = {attack.id: self._prepare(attack.text) for attack in control.attacks}
        if control.has_reference:
            test_texts[REFERENCE] = self._prepare(request.reference)
        shown_ids = {text: id_ for id_, text in candidates.items()}
        hidden_ids: dict[str, str] = {}  # by attack id or REFERENCE
        for name, text in test_texts.items():
            hidden_ids[name] = shown_ids.setdefault(text, _create_unused_id(id_length, shown_ids.values()))
        shown_texts = dict(sorted((id_, text) for text, id_ in shown_ids.items()))
        scores = await self._request_scores(request, shown_texts, tally)
        # A completion that equals an attack must not count as the best real answer.
        attack_ids = {hidden_ids[attack.id] for attack in control.attacks}
        best_score = max((scores[id_] for id_ in candidates if id_ not in attack_ids), default=0.0)
        self._record_control(control, {name: scores[id_] for name, id_ in hidden_ids.items()}, best_score)
        return {id_: scores[id_] for id_ in candidates}

    def _record_control(self, control: Control, scores: Mapping[str, float], best_score: float) -> None:
        """Record a control's scores. Raises ModelFailure if the judge failed."""
        assert self.controls is not None
        was_quarantined = self.controls.is_quarantined
        if self.controls.record_scores(control, scores, best_score):
            suspects = ", ".join(self.controls.suspects)
            if self.controls.is_quarantined:
                log.error("the judge is now in quarantine: it failed two hidden tests in a row (%s)", suspects)
            else:
                log.warning("the judge failed a hidden test (%s); the next group repeats the test", suspects)
            raise ModelFailure("fooled", "the judge failed a hidden test")
        if was_quarantined and not self.controls.is_quarantined:
            log.warning("the judge has left quarantine: it passed the tests that it had failed")

    async def _request_scores(
        self, request: ScoreRequest, candidates: Mapping[str, str], tally: CallTally
    ) -> dict[str, float]:
        """Request scores for the candidates in this order, and retry if a reply is unusable. Raises ModelFailure."""
        complaint, prompt = "", prepare(request.prompt, self._max_characters)
        request_count = 0
        while True:
            request_count += 1
            question = rubric_prompts.build_request(
                self.rubric, request.policy, prompt, candidates, complaint, request.domain
            )
            try:
                return await self._send(question, candidates, request.deadline_s, tally)
            except ModelFailure as failure:
                if failure.kind not in UNUSABLE_REPLY_KINDS or request_count == MAX_REQUESTS:
                    raise
                complaint = failure.detail

    async def _send(
        self, question: Conversation, candidates: Mapping[str, str], timeout_s: float, tally: CallTally
    ) -> dict[str, float]:
        """Send one request, read its scores and report the call."""
        started_ns = time.time_ns()
        reply: ModelReply | None = None
        failure_kind: FailureKind | None = None
        scores: dict[str, float] = {}
        try:
            reply = await self.model.ask(question, timeout_s)
            reply.require_complete()
            scores = rubric_prompts.read_verdicts(reply.text, candidates, tally.reasons)
            return scores
        except ModelFailure as failure:
            failure_kind = failure.kind
            if failure_kind in UNUSABLE_REPLY_KINDS:
                tally.fail_attempt(failure_kind)  # the HTTP client records the other kinds for each attempt
            raise
        except asyncio.CancelledError:
            failure_kind = "timeout"
            raise
        finally:
            if self._on_call is not None and failure_kind != "budget":  # a call that the budget refuses is never sent
                call = ModelCall(self.model, reply, failure_kind, started_ns, tally.context, self.rubric.role, scores)
                try:
                    self._on_call(call)
                except Exception as error:
                    log.error("the callback for model calls raised %s", type(error).__name__)


def _create_unused_id(length: int, used_ids: Collection[str]) -> str:
    """Return an unused random id of this length, or longer if all short ids are in use."""
    while True:
        candidate = secrets.token_hex(32)[:length]
        if candidate not in used_ids:
            return candidate
        length += 1


@dataclass(frozen=True)
class JudgeConfiguration:
    """The complete configuration of a member's judge."""

    name: str
    endpoint: ModelEndpoint
    key: str
    """The API key."""
    rubric: Rubric
    top_logprobs: int
    """Number of alternatives per token to request. If it is 0, no log-probabilities are requested."""
    check_settings: CheckSettings = CONTROLS_ONLY

    @classmethod
    def look_up(
        cls,
        name: str,
        member: MemberSettings,
        catalogue: Catalogue,
        environ: Mapping[str, str] = os.environ,
        check_settings: CheckSettings = CONTROLS_ONLY,
    ) -> JudgeConfiguration:
        """Look up a member's judge. Raises ConfigError for an unknown provider or a missing address, key or rubric."""
        endpoint = endpoint_of(name, member, catalogue)
        text = read_rubric(name, member.rubric) if member.rubric else ""
        rubric = Rubric(member.role, member.domain, text)
        top_logprobs = member.top_logprobs if member.logprobs else 0
        return cls(name, endpoint, key_of(name, endpoint, environ), rubric, top_logprobs, check_settings)

    def connect(self, budget: Budget | None = None, account: str = "") -> RemoteModel:
        """Return the model without sending it a request. Raises ConfigError like `providers.connect`."""
        return providers.connect(self.name, self.endpoint, self.key, self.top_logprobs, budget, account)

    def create_judge(self, model: RemoteModel, swap_count: int = 0, on_call: OnCall | None = None) -> Judge:
        """Return a judge that calls `model`, with all its checks. `swap_count` is the number of the member's swaps."""
        identity = f"{self.endpoint.provider} {self.endpoint.base_url} {self.endpoint.model} {self.rubric.role}"
        # Like the role "style", a user's rubric may score something other than the content.
        scores_content = self.rubric.role != "style" and not self.rubric.text
        controls = self.check_settings.create_controls(identity, swap_count, scores_content=scores_content)
        return Judge(self.rubric, model, controls, on_call, check_settings=self.check_settings)

    def __repr__(self) -> str:
        return f"JudgeConfiguration({self.name!r}, {self.endpoint!r})"  # without the key
