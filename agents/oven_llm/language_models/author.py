"""A curriculum author: prompts of a language model's for the topics that lag; without a model, the graph's weights."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from oven_agents.runtime.companion import AskGraph, Surroundings
from oven_agents.sdk.agent import Agent, Answer, Notice
from oven_agents.sdk.window import Window
from oven_agents.stats.objective import held_out, signed
from oven_agents.stats.robust_statistics import total_variation
from oven_core.errors import ConfigError, reason
from oven_core.protocol.graph_requests import Curriculum, CurriculumRequest, Mastery
from oven_core.protocol.messages import RunStarted, Value, Vote
from oven_llm.language_models import author_answer, author_question
from oven_llm.language_models.asker import Asker
from oven_llm.language_models.author_answer import Written
from oven_llm.language_models.author_question import Mastered
from oven_llm.language_models.call_limit import CallLimit
from oven_llm.language_models.desk import Desk, counted
from oven_llm.providers.failures import ModelFailure
from oven_runs.home.authored_prompts import AuthoredPrompt, append_prompts, normalized, read_topics
from oven_runs.settings.language_models import AuthorSettings

log = logging.getLogger("oven.agent")

SHARE, MIXTURE, HELD = "data.authored_share", "data.mixture", "data/authored"
OFF = "no model is configured: set author.llm, e.g. author: {llm: {provider: claude, model: NAME}}, or author.enabled"
NEWEST = 10
"""Ticks that a topic's mastery is the mean of."""
LEAST = 5
"""Ticks with a reward before anything is asked for: what a policy cannot do yet is not known earlier."""
MASTERED = 0.95
"""Mean reward from which a topic does not lag; the variance of a success is below .05 there."""
LAGGING = 3
"""Topics that one request is about, those with the lowest mastery."""
ENOUGH = 8
"""Authored prompts that the learner must hold before a share of the draws is proposed: fewer would repeat too often."""
STEP = 0.1
"""The share that is proposed, of a topic's draws: one prompt in ten can do little harm."""
SURE = 0.5
"""Confidence of its proposals: even odds, since no share of successes is recorded. No quorum alone."""
MOVED = 0.1
"""Total variation between the graph's weights and the present ones from which they are proposed."""
EXPECTED = 0.02
"""Change that it promises of the target, in its unit: small, for one prompt in ten."""
HORIZON = 60
"""Ticks until it shows: prompts that are drawn now and then have been answered some dozens of times by then."""


@dataclass(frozen=True)
class Request:
    """What the companion is asked to do."""

    topics: tuple[Mastered, ...]


Found = Written | Curriculum


class Author(Agent):
    """Signals: the mean reward of each topic (`reward/TOPIC`, or `reward` where there is one topic).

    Actions: every `author.every` ticks it asks a language model for prompts of the topics that lag (where about half of
    the answers succeed a group has most to compare: Bae et al. 2025, arXiv 2504.03380), checks them, and puts them into
    a file of the run's folder, which the learner reads between two steps and checks again. Once the learner holds
    enough of them it proposes that a tenth of those topics' draws go to them (`data.authored_share`, 0 until that is
    adopted). Without a model, or without its key, it proposes the topics' weights of the knowledge graph's `curriculum`
    instead.

    False alarms: none is measured. Its confidence is even odds, and no quorum alone.

    Limits: whether a prompt is solvable is the model's word; no answer comes with it, so rules that compare with one
    abstain, and judges score. A model that fails is an abstention, counted by kind and told in its status. A recording
    cannot be asked again.
    """

    version = "1"
    moves = (SHARE, MIXTURE)
    unrepeatable = (
        "asks a language model for prompts, which are not in the log: what it would do on a recording is not known; "
        "`oven-controller log` has what it voted"
    )

    def __init__(self) -> None:
        self.desk: Desk[Request, Found] = Desk()
        self.dropped: Counter[str] = Counter()
        """Prompts of the model's that were not passed on, by reason."""
        self.written = 0
        self._settings = AuthorSettings()
        self._asker: Asker | None = None
        self._off, self._without = OFF, ""
        self._name, self._folder = "author", Path()
        self._known: set[str] = set()  # normalized texts that were passed on
        self._weights: Mapping[str, float] = {}  # the graph's newest

    def begin(self, around: Surroundings) -> Coroutine[Any, Any, None] | None:
        """Read the settings; then write prompts beside the votes, or ask the graph."""
        self._name, self._folder = around.name, around.folder
        try:
            self._settings = settings = _settings(around.settings)
        except ConfigError as error:
            self._off = str(error)
            return None
        if not settings.on:
            return None
        self._off = ""
        if settings.llm is not None:
            try:
                limit = CallLimit(around.folder, around.name, settings.calls)
                self._asker = Asker(around.name, settings.llm, around.providers_file, limit, settings.deadline_s)
                self.version = f"1 ({settings.llm.model})"  # type: ignore[misc]
            except ConfigError as error:
                self._without = str(error)
                log.warning("%s: %s; the knowledge graph's weights of topics instead", self._name, error)
        return self._beside(around.ask_graph)

    def cannot_fire(self, run: RunStarted) -> str | None:
        if self._off:
            return self._off
        knobs = {spec.name: spec for spec in run.actuators}
        if self._asker is not None:
            return None if SHARE in knobs else f"the run announces no {SHARE}: its prompts have to be a PromptSource's"
        why = self._without or "no model is configured"
        if MIXTURE not in knobs:
            return f"{why}, and the run announces no {MIXTURE}, whose weights the knowledge graph could say"
        published = {metric.name for metric in run.metrics}
        if not any(f"reward/{topic}" in published for topic in knobs[MIXTURE].choices):
            return f"{why}, and the run publishes no reward by topic (reward/NAME)"
        return None

    def vote(self, window: Window) -> Answer:
        answered = self.desk.take()
        if answered is None:
            notice = self._ask_if_due(window)
            return notice or self._proposal(window)
        if isinstance(answered.found, ModelFailure):
            return Notice(answered.found.kind, f"abstains: {answered.found}; so far {self._told()}")
        if isinstance(answered.found, Written):
            topics = ", ".join(sorted({topic for topic, _ in answered.found.prompts})) or "none"
            return Notice(
                f"prompts {self.written}", f"wrote {len(answered.found.prompts)} prompts ({topics}); {self._told()}"
            )
        self._weights = answered.found.weights
        return self._proposal(window)

    def _proposal(self, window: Window) -> Vote | Notice | None:
        knob = window.knobs.get(SHARE)
        held = window.series(HELD, last=1)
        if self._asker is not None and knob is not None and knob.number == 0 and held and held[0] >= ENOUGH:
            why = f"{held[0]:.0f} prompts for topics that lag are written and checked, and no draw goes to them"
            return self._forecast(window, SHARE, knob.bounded(STEP), why)
        if self._weights and (mixture := window.knobs.get(MIXTURE)) is not None:
            shares = mixture.shares
            weights, self._weights = dict(self._weights), {}
            if set(weights) == set(shares) and total_variation(shares, weights) >= MOVED:
                moved = ", ".join(f"{name} {shares[name]:.0%} to {to:.0%}" for name, to in sorted(weights.items()))
                return self._forecast(window, MIXTURE, weights, f"what can be learnt now, by the graph: {moved}")
        return None

    def _forecast(self, window: Window, actuator: str, value: Value, why: str) -> Vote | Notice:
        """What is drawn moves the reward, so that only a held-out metric judges it."""
        target = held_out(window.run)
        if target is None:
            how = f"a person may set {actuator} (`oven-controller set`)"
            return Notice(f"unjudged {actuator}", f"{why}; the run has no held-out metric that could judge it: {how}")
        return window.propose(
            actuator,
            value,
            confidence=SURE,
            why=why,
            target=target.name,
            expected_change=signed(target, EXPECTED),
            horizon=HORIZON,
        )

    def _ask_if_due(self, window: Window) -> Notice | None:
        if not self.desk.free or len(window.series("reward")) < LEAST:
            return None
        if self._asker is not None and self._asker.limit.spent:
            return Notice("calls", f"all {self._asker.limit.most} calls of author.calls are made: {self._told()}")
        if self._asker is not None and self.written >= self._settings.total:
            return Notice("total", f"all {self._settings.total} prompts of author.total are written: {self._told()}")
        if self.desk.asked_tick >= 0 and window.tick < self.desk.asked_tick + self._settings.every:
            return None
        topics = mastery(window)
        if self._asker is not None:
            topics = lagging(topics)
        if topics:
            self.desk.put(Request(tuple(topics)), window.tick)
        return None

    async def _beside(self, ask_graph: AskGraph) -> None:
        """One request after another, for as long as the process lives."""
        try:
            while True:
                asked = await self.desk.wanted()
                try:
                    self.desk.answer(await self._found(ask_graph, asked))
                except ModelFailure as failure:
                    self.desk.answer(failure)
                except Exception as error:  # a fault of ours; its text may hold a prompt
                    self.desk.answer(ModelFailure("internal", type(error).__name__))
        finally:
            if self._asker is not None:
                await self._asker.close()

    async def _found(self, ask_graph: AskGraph, asked: Request) -> Found:
        """Raises ModelFailure."""
        if self._asker is None:
            reply = await ask_graph("curriculum", _question(asked.topics).wire())
            return _curriculum(reply)
        try:
            known = {topic.name: topic for topic in await asyncio.to_thread(read_topics, self._folder)}
        except ConfigError as error:
            raise ModelFailure("malformed_request", f"the topics are not known: {error}") from None
        topics = [one for one in asked.topics if one.topic in known]
        if not topics and len(known) == 1:  # a source with one topic announces no mixture, which would name it
            topics = [replace(asked.topics[0], topic=next(iter(known)))]
        if not topics:
            raise ModelFailure("malformed_request", "the learner has none of the mixture's topics")
        count = min(self._settings.prompts, self._settings.total - self.written)
        seen = self._known | {normalized(text) for topic in known.values() for text in topic.examples}
        names = {one.topic for one in topics}
        written = await self._asker.ask(
            author_question.question(topics, known, count), lambda text: author_answer.read(text, names, seen, count)
        )
        self.dropped += written.dropped
        await self._pass_on(written, self._asker.model)
        return written

    async def _pass_on(self, written: Written, model: str) -> None:
        tick = self.desk.asked_tick
        prompts = [
            AuthoredPrompt(topic=topic, prompt=text, by=self._name, model=model[:100], tick=tick)
            for topic, text in written.prompts
        ]
        if not prompts:
            return
        try:
            await asyncio.to_thread(append_prompts, self._folder, prompts)
        except OSError as error:
            raise ModelFailure("internal", f"the prompts cannot be written: {reason(error)}") from None
        self._known.update(normalized(one.prompt) for one in prompts)
        self.written += len(prompts)

    def _told(self) -> str:
        if self._asker is None:
            return "the knowledge graph alone is asked"
        limit = self._asker.limit
        cost = f", {limit.cost_usd:.4f} USD" if limit.cost_usd else ""
        dropped, failed = counted(self.dropped), counted(self._asker.failed)
        return f"{limit.made} calls{cost}, {self.written} prompts; dropped: {dropped}; abstained: {failed}"


def mastery(window: Window) -> list[Mastered]:
    """Of each topic of the mixture; without a mixture, of the whole under the source's one topic."""
    mixture = window.knobs.get(MIXTURE)
    if mixture is None:
        return [_mastered(window, "", "reward")]
    return [_mastered(window, topic, f"reward/{topic}") for topic in mixture.spec.choices]


def lagging(topics: Sequence[Mastered]) -> list[Mastered]:
    """Those that are not mastered, the weakest first; one that is not measured counts as half mastered."""
    open_ = [one for one in topics if one.mastery is None or one.mastery < MASTERED]
    return sorted(open_, key=lambda one: (0.5 if one.mastery is None else one.mastery, one.topic))[:LAGGING]


def _mastered(window: Window, topic: str, metric: str) -> Mastered:
    values = [min(1.0, max(0.0, value)) for value in window.series(metric) if math.isfinite(value)]
    now, before = values[-NEWEST:], values[-2 * NEWEST : -NEWEST]
    return Mastered(
        topic, round(fmean(now), 3) if now else None, round(fmean(before), 3) if before else None, len(values)
    )


def _question(topics: Sequence[Mastered]) -> CurriculumRequest:
    """A tick counts as one trial, whose success is its mean reward; a topic that is not measured has none."""
    return CurriculumRequest(
        mastery=tuple(
            Mastery(
                topic=one.topic,
                successes=(one.mastery or 0.0) * min(one.readings, NEWEST),
                failures=(1 - one.mastery) * min(one.readings, NEWEST) if one.mastery is not None else 0.0,
            )
            for one in topics
        )
    )


def _curriculum(reply: bytes | None) -> Curriculum:
    if reply is None:
        raise ModelFailure("connection", "the knowledge graph does not answer")
    try:
        return Curriculum.model_validate_json(reply)
    except ValidationError:
        raise ModelFailure("bad_response", "the knowledge graph's answer is not a Curriculum") from None


def _settings(resolved: dict[str, Any]) -> AuthorSettings:
    try:
        return AuthorSettings.model_validate(resolved.get("author", {}))
    except ValidationError as error:
        raise ConfigError(
            f"the run's settings of `author` have {error.error_count()} faults; `up` writes them"
        ) from None
