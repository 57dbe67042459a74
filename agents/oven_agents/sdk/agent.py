"""What an agent is: it says what it needs and what it may move, and votes on a window. Nothing else is asked of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, Final, TypeAlias

from oven_agents.sdk.alternative_plans import Alternatives, Plan
from oven_agents.sdk.topic_shares import TopicShares
from oven_agents.sdk.window import Window
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote


@dataclass(frozen=True, slots=True)
class Notice:
    """What an agent has to say to people, and no vote. It is logged once, until the agent says something about another
    matter."""

    about: str
    """The matter in a word or two: two notices about one matter are one, whatever their figures."""
    text: str
    """One sentence, with where to look."""


Said: TypeAlias = Vote | Sequence[Vote] | Plan | Alternatives | TopicShares | Notice | None
"""What an agent may answer to a window: nothing, one vote, several that stand each by itself, a plan, alternatives of
which one is said, shares of topics that the graph has a say in, or a notice."""


SHARE: Final = (0.0, 1.0)
"""Bounds of an option that is a share or a probability."""


class Agent:
    """Subclass it. Keep no state that the window does not hold: an agent that
    was restarted must vote like one that was not."""

    version: ClassVar[str] = "1"
    needs: ClassVar[tuple[str, ...]] = ()
    """Metrics without which it cannot vote; patterns such as `reward/*` are allowed."""
    moves: ClassVar[tuple[str, ...]] = ()
    """Actuators that it may propose for."""
    speciality: ClassVar[tuple[str, ...]] = ()
    """Those of them on which it alone, sure enough, is a quorum."""
    options: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Option → its least and greatest value. Each numeric attribute in capitals that has a docstring is an option, by
    its name in lower case; without a bound here it keeps the sign of its default
    (oven_runs.settings.agent_options)."""

    unrepeatable: ClassVar[str] = ""
    """Why its votes cannot be made again from a log, as the rest of a sentence that begins with its name; empty: they
    can."""

    def vote(self, window: Window) -> Said:
        """Called once per tick, or once for several when ticks come faster than votes. None is an abstention."""
        raise NotImplementedError

    def alerts(self, window: Window) -> Sequence[Alert]:
        """The symptoms that are there now (`window.alert`), asked before `vote`. Each is said once when it is first
        returned, and cleared when it is returned no more; so return it as long as it lasts, and leave a margin between
        where it begins and where it ends (oven_agents.stats.hysteresis)."""
        return ()

    def review(self, ballot: BallotOpened, window: Window) -> Vote | None:
        """Called once for each ballot that somebody else opened. None is an abstention."""
        return None

    def cannot_fire(self, run: RunStarted) -> str | None:
        """Why this agent will never vote on this run, or None. Asked once per run; the answer is shown to people."""
        actuators = {spec.name for spec in run.actuators}
        metrics = [spec.name for spec in run.metrics]
        if self.moves and not actuators.intersection(self.moves):
            return f"the run announces none of {', '.join(self.moves)}"
        missing = [need for need in self.needs if not any(fnmatchcase(name, need) for name in metrics)]
        if missing:
            return f"the run publishes no {', '.join(missing)}{unmeasured(run, *missing)}"
        return None


def unmeasured(run: RunStarted, *metrics: str) -> str:
    """What the learner says that these need: ": NAME needs …; …", or nothing."""
    said = [f"{name} {run.unmeasured[name]}" for name in metrics if name in run.unmeasured]
    return ": " + "; ".join(said) if said else ""
