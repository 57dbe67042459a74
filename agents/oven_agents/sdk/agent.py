"""The base class of agents. An agent declares the metrics and actuators that it uses, then votes on each window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, Final, TypeAlias

from oven_agents.sdk.alternative_plans import Alternatives, GraphReview, Plan, TopicShares
from oven_agents.sdk.window import Window
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for people, without a vote. It is logged again only after a notice about another topic."""

    about: str
    """The topic in a few words. Notices about the same topic count as one, even if their figures differ."""
    text: str
    """One sentence that tells a person where to look."""


Answer: TypeAlias = Vote | Sequence[Vote] | Plan | Alternatives | TopicShares | Notice | None
"""The result of `Agent.vote`: an abstention, one vote, several independent votes, a plan, alternative plans (only one
is published), topic shares that the knowledge graph may adjust, or a notice."""

SHARE_BOUNDS: Final = (0.0, 1.0)
"""Bounds of an option that is a share or a probability."""


class Agent:
    """Base class for agents. An agent keeps no state outside the window, so a restart does not change its votes."""

    version: ClassVar[str] = "1"
    needs: ClassVar[tuple[str, ...]] = ()
    """Metrics without which the agent cannot vote. Patterns such as `reward/*` are allowed."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Metrics on which the agent's votes rest, if not `needs`. They determine the kind of evidence of its votes
    (oven_core.protocol.evidence), unless the vote names other metrics."""
    moves: ClassVar[tuple[str, ...]] = ()
    """Actuators that the agent may propose to change."""
    options: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Bounds of the agent's options: name → (minimum, maximum). Every numeric class attribute in capitals that has a
    docstring is an option, under its name in lower case. An option without bounds must keep the sign of its default
    (oven_runs.settings.agent_options)."""
    unrepeatable: ClassVar[str] = ""
    """The reason why the agent's votes cannot be recomputed from a log, or an empty string if they can. It is the end
    of a sentence that starts with the agent's name."""

    def vote(self, window: Window) -> Answer:
        """Return the vote on the newest tick, or None to abstain. Ticks that arrive during the call are skipped."""
        raise NotImplementedError

    def alerts(self, window: Window) -> Sequence[Alert]:
        """Return the current symptoms, made with `window.alert`. Called before `vote`. The runtime logs a symptom when
        it first appears and again when it is no longer returned. Return it for as long as it lasts, and use hysteresis
        between start and end (oven_agents.stats.symptoms)."""
        return ()

    def review(self, ballot: BallotOpened, window: Window) -> Vote | GraphReview | None:
        """Return a vote on a ballot that another agent opened, or None to abstain. Called once per ballot, also if the
        agent itself cannot vote in this run."""
        return None

    def can_review(self, run: RunStarted) -> bool:
        """Return whether the agent can review ballots in this run. Called once per run."""
        return type(self).review is not Agent.review

    def cannot_fire(self, run: RunStarted) -> str | None:
        """Return the reason why this agent can never propose anything in this run, or None. Called once per run. If it
        cannot review ballots either, users see the reason in its status, which is then `cannot_fire`."""
        actuators = {spec.name for spec in run.actuators}
        metrics = [spec.name for spec in run.metrics]
        if self.moves and not actuators.intersection(self.moves):
            return f"the run announces none of {', '.join(self.moves)}"
        unmatched_patterns = [
            pattern for pattern in self.needs if not any(fnmatchcase(name, pattern) for name in metrics)
        ]
        if unmatched_patterns:
            return f"the run publishes no {', '.join(unmatched_patterns)}{unmeasured_reasons(run, *unmatched_patterns)}"
        return None


def unmeasured_reasons(run: RunStarted, *metrics: str) -> str:
    """Return the end of a sentence with the reasons why the learner does not measure these metrics, if it gave any."""
    reasons = [f"{name} {run.unmeasured[name]}" for name in metrics if name in run.unmeasured]
    return ": " + "; ".join(reasons) if reasons else ""
