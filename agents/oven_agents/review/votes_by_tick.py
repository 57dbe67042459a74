"""What agents say at each tick of a recording in which nothing is ever changed.

There an answer follows from the observations alone: knobs stand as announced, and there is no receipt. So ticks can be
asked in any order and by several processes, each block with the one before it for its windows. What was decided in
between is not needed: who may speak again while a decision is under way is the session's to say, afterwards.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TypeAlias

from oven_agents.review.columnar_window import ColumnarWindow
from oven_agents.review.observation_file import BLOCK, Index
from oven_agents.runtime.loader import load
from oven_agents.sdk.agent import Agent, Notice, Said
from oven_agents.sdk.alternative_plans import Alternatives, Plan
from oven_agents.sdk.session import KEPT, PATIENCE
from oven_agents.sdk.topic_shares import TopicShares
from oven_agents.sdk.window import Knob, Window
from oven_core.errors import ProcessError
from oven_core.protocol.messages import BallotOpened, RunStarted, Vote

BLOCKS = 8
"""Blocks that are asked at a time."""
LEAST = 20 * BLOCK
"""Ticks from which on a second process is worth its start."""
Answer: TypeAlias = list[Vote] | Plan | Alternatives | TopicShares | Notice


@dataclass
class Answers:
    """By agent."""

    said: dict[str, dict[int, Answer]] = field(default_factory=dict)
    """Tick → what it said there, where it said anything."""
    raised: dict[str, dict[int, str]] = field(default_factory=dict)
    """Tick → traceback."""
    ballots: set[str] = field(default_factory=set)
    """Agents that looked at open ballots: their answers here are worth nothing."""

    def merge(self, other: Answers) -> None:
        for name, said in other.said.items():
            self.said.setdefault(name, {}).update(said)
        for name, raised in other.raised.items():
            self.raised.setdefault(name, {}).update(raised)
        self.ballots |= other.ballots

    def at(self, name: str, tick: int) -> Answer | None:
        return self.said.get(name, {}).get(tick)

    def patience(self, name: str) -> int | None:
        """The tick from which on the agent is not asked any more, because it raised PATIENCE times in a row; None: it
        always is. Ticks count up by one in a recording of this kind."""
        raised = sorted(self.raised.get(name, ()))
        for first, last in zip(raised, raised[PATIENCE - 1 :], strict=False):
            if last - first == PATIENCE - 1:
                return last
        return None


class _Ballots(Mapping[str, BallotOpened]):
    """None is open. Remembers that somebody looked."""

    seen = False

    def __getitem__(self, actuator: str) -> BallotOpened:
        self.seen = True
        raise KeyError(actuator)

    def __iter__(self) -> Iterator[str]:
        self.seen = True
        return iter(())

    def __len__(self) -> int:
        self.seen = True
        return 0


def ask(agents: Mapping[str, Agent], index: Index, first: int, end: int) -> Answers:
    """The answers in the blocks `first` to `end` (exclusive)."""
    found = Answers()
    columns = ColumnarWindow(KEPT)
    run: RunStarted | None = None
    knobs: dict[str, Knob] = {}
    able: dict[str, Agent] = {}
    warm = min(first, 1) * BLOCK
    for message in index.read(first - 1 if warm else first, end):
        if isinstance(message, RunStarted):
            if run is not None and message.training != run.training:
                columns.clear()
            run = message
            knobs = {spec.name: Knob(spec, spec.value) for spec in run.actuators}
            able = {name: agent for name, agent in agents.items() if not _mute(agent, run)}
            continue
        columns.add(message)
        if warm:
            warm -= 1
            continue
        if run is None:
            continue
        for name, agent in able.items():
            ballots = _Ballots()
            window = columns.window(run, (message,), knobs, (), ballots, frozenset())
            try:
                said = _said(agent, window)
            except (Exception, SystemExit):
                found.raised.setdefault(name, {})[message.tick] = traceback.format_exc()
                continue
            finally:
                if ballots.seen:
                    found.ballots.add(name)
            if said:
                found.said.setdefault(name, {})[message.tick] = said
    return found


class Asking:
    """Asks agents (name → entry point or file) part by part, while the file is still being written: in processes of its
    own where the run is long and there are cores for it, else here."""

    def __init__(self, agents: Mapping[str, str], index: Index, processes: int) -> None:
        self._agents, self._index, self._processes = dict(agents), index, processes
        self._parts: list[tuple[int, int]] = []
        self._pool: ProcessPoolExecutor | None = None
        self._asked: list[Future[Answers]] = []

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def written(self, blocks: int) -> None:
        """So many blocks can be read from now on."""
        first = self._parts[-1][1] if self._parts else 0
        if blocks <= first:
            return
        self._parts.append((first, blocks))
        if self._processes > 1 and blocks * BLOCK >= LEAST:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(self._processes, get_context("spawn"), _begin, (self._agents,))
            for part in self._parts[len(self._asked) :]:
                self._asked.append(self._pool.submit(_work, (self._index, *part)))

    def answers(self, loaded: Mapping[str, Agent]) -> Iterator[tuple[int, Answers]]:
        """(blocks so far, answers of the newest part), in order; once, when all is written. `loaded` are the agents,
        for what is asked here.

        Raises ProcessError when one of the processes ends before its time.
        """
        try:
            for number, (first, end) in enumerate(self._parts):
                yield end, self._asked[number].result() if self._pool else ask(loaded, self._index, first, end)
        except BrokenProcessPool as error:
            raise ProcessError(
                "a process that asked agents ended before its time, perhaps for want of memory; --jobs 1 needs less"
            ) from error


_loaded: dict[str, Agent] = {}


def _begin(agents: Mapping[str, str]) -> None:
    """In each process, once. Windows are many short lists and no cycles: the collector would only look through them."""
    gc.set_threshold(200_000)
    _loaded.update((name, load(target)[1]) for name, target in agents.items())


def _work(part: tuple[Index, int, int]) -> Answers:
    return ask(_loaded, *part)


def _mute(agent: Agent, run: RunStarted) -> bool:
    try:
        return bool(agent.cannot_fire(run))
    except (Exception, SystemExit):
        return True  # the session says so, with the reason


def _said(agent: Agent, window: Window) -> Answer:
    said = agent.vote(window)
    if isinstance(said, Alternatives | Plan | TopicShares | Notice):
        return said
    words: list[object] = [said] if isinstance(said, Vote) else list(said or ())
    votes = [word for word in words if isinstance(word, Vote)]
    wrong = next((type(word).__name__ for word in words if not isinstance(word, Vote)), "")
    if wrong:
        raise TypeError(f"vote() returned {wrong}; return a Vote, several, a Plan, Alternatives, a Notice or None")
    return votes


class Answered(Agent):
    """An agent that says what it said when it was asked before."""

    def __init__(self, agent: Agent, name: str, answers: Answers) -> None:
        """`answers` may grow, as long as it has all parts up to the tick that is voted on."""
        self._agent, self._name, self._answers = agent, name, answers
        for field_ in ("version", "needs", "moves", "speciality"):
            setattr(self, field_, getattr(agent, field_))

    def cannot_fire(self, run: RunStarted) -> str | None:
        return self._agent.cannot_fire(run)

    def vote(self, window: Window) -> Said:
        until = self._answers.patience(self._name)
        return None if until is not None and window.tick > until else self._answers.at(self._name, window.tick)


def reviews(agent: Agent) -> bool:
    """Whether it answers others' ballots, which are not known before the decisions are."""
    return type(agent).review is not Agent.review
