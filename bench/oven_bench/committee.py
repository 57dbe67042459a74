"""`bench committee`: does the committee give right rewards when a quarter of its remote judges' replies are faulty?

It runs a real server and a committee as in a run: a rule and remote judges, all with weight. Every completion has a
known true score, and every honest reply contains it, so any other reward is wrong. The same groups are also judged
without faults, to measure the time that faults cost, and the bench counts the groups that a single judge would have
lost. Exit code 1: a reward was wrong, or the committee did not count every injected fault.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import click

from oven_bench.study import Report, Study
from oven_core.bus import Msg
from oven_core.bus.connection import Bus
from oven_core.protocol import names
from oven_core.protocol.committee_requests import ScoreReply, ScoreRequest
from oven_core.security.credentials import Credentials
from oven_learner.rewards import Committee
from oven_learner.rewards.remote_members import RemoteMembers
from oven_learner.rewards.verdicts import Abstention, Cost, Scores
from oven_runs.server.embedded_server import EmbeddedServer, ServerFolder


class MembersOnAThread:
    """A context in which the server and the members run on an event loop in another thread."""

    def __init__(self, folder: Path, members: Sequence[str]) -> None:
        self.names = tuple(members)
        self._files = ServerFolder(folder / "nats", "bench")
        self._files.add_user("learner", "learner")
        for name in self.names:
            self._files.add_user("member", name)
        self._log = folder / "nats-server.log"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: EmbeddedServer | None = None
        self._buses: list[Bus] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def remote(self, deadline_s: float) -> RemoteMembers:
        """The client by which a committee asks these members."""
        assert self._server is not None
        return RemoteMembers(self.names, self._server.url, self._key("learner"), deadline_s=deadline_s)

    def answering(self, bus: Bus, member: str) -> Callable[[Msg], Awaitable[None]]:
        """The handler of one member's requests. It replies over `bus`."""
        raise NotImplementedError

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _key(self, name: str) -> Credentials:
        return Credentials.load(self._files.creds / f"{name}.nk")

    async def _open(self) -> None:
        self._server = await EmbeddedServer.start(self._files, self._log)
        for name in self.names:
            bus = await Bus.open(self._server.url, self._key(name))
            self._buses.append(bus)
            await bus.subscribe(names.reward(name), self.answering(bus, name))
            await bus.flush()

    async def _close(self) -> None:
        for bus in self._buses:
            await bus.close()
        if self._server is not None:
            await self._server.stop()


COMPLETIONS = 8
GROUPS_A_STEP = 25
RIGHT = 1e-9
"""Largest rounding error of a right reward: the committee standardizes scores and converts them back."""


def truth(text: str) -> float:
    return float(text.rsplit(" ", 1)[1]) / 100


def _honest(request: ScoreRequest, member: str) -> ScoreReply:
    return ScoreReply(member=member, group=request.group, scores={c.id: truth(c.text) for c in request.completions})


def _edited(**update: object) -> Callable[[ScoreRequest, str], bytes]:
    return lambda request, member: _honest(request, member).model_copy(update=update).wire()


def rescored(change: Callable[[float], float]) -> Callable[[ScoreRequest, str], bytes]:
    def make(request: ScoreRequest, member: str) -> bytes:
        reply = _honest(request, member)
        return reply.model_copy(update={"scores": {id: change(s) for id, s in (reply.scores or {}).items()}}).wire()

    return make


def _other_ids(request: ScoreRequest, member: str) -> bytes:
    """Right scores under the ids of a group that no one asked about."""
    scores = {f"{n}": truth(completion.text) for n, completion in enumerate(request.completions)}
    return ScoreReply(member=member, group=request.group, scores=scores).wire()


def _one_missing(request: ScoreRequest, member: str) -> bytes:
    scores = {completion.id: truth(completion.text) for completion in request.completions[1:]}
    return ScoreReply(member=member, group=request.group, scores=scores).wire()


FAULTS: dict[str, Callable[[ScoreRequest, str], bytes] | None] = {
    "silence": None,
    "prose": lambda request, member: b"I would give the first one 7/10.",
    "cut short": lambda request, member: _honest(request, member).wire()[:-20],
    "other ids": _other_ids,
    "one missing": _one_missing,
    "another group": _edited(group="another"),
    "another's name": _edited(member="somebody"),
    "percent": rescored(lambda score: 100 * score + 2),
    "nan": rescored(lambda score: float("nan")),
    "its own failure": _edited(scores=None, failure="rate_limit"),
}


class Members(MembersOnAThread):
    """Members that reply honestly until `go_wrong`; from then on a share of their replies is faulty."""

    def __init__(self, folder: Path, count: int, share: float, seed: int) -> None:
        super().__init__(folder, [f"judge{n}" for n in range(1, count + 1)])
        self.share = 0.0
        self._full = share
        self._rng = {name: random.Random(f"faults {seed} {name}") for name in self.names}
        self.injected = 0

    def go_wrong(self) -> None:
        self.share = self._full

    def answering(self, bus: Bus, member: str) -> Callable[[Msg], Awaitable[None]]:
        async def answer(message: Msg) -> None:
            request, rng = ScoreRequest.model_validate_json(message.data), self._rng[member]
            fault = rng.choice(list(FAULTS)) if rng.random() < self.share else ""
            self.injected += bool(fault)
            make = FAULTS[fault] if fault else lambda request, member: _honest(request, member).wire()
            if make is not None:
                await bus.publish(message.reply, make(request, member))

        return answer


class CountedMembers:
    """Remote members, and the number of groups on which the first of them abstained."""

    def __init__(self, remote: RemoteMembers) -> None:
        self.members, self.judges, self.deadline_s = remote.members, remote.judges, remote.deadline_s
        self.probe, self.join, self.leave = remote.probe, remote.join, remote.leave
        self.health = remote.health
        self.lost_by_one = 0
        self._remote = remote

    def ask(self, requests: Any, members: Mapping[str, Any]) -> dict[str, list[Scores | Abstention]]:
        verdicts = self._remote.ask(requests, members)
        self.lost_by_one += sum(isinstance(verdict, Abstention) for verdict in verdicts[self.members[0]])
        return verdicts

    def take_reasons(self, member: str, group: str) -> dict[str, str]:
        return self._remote.take_reasons(member, group)

    def take_cost(self) -> Cost:
        return self._remote.take_cost()

    def close(self) -> None:
        self._remote.close()


def measure(folder: Path, groups: int, members: int, share: float, deadline_s: float, seed: int) -> dict[str, Any]:
    """The bench's figures. `seconds` is the time for all groups with faults, `seconds_clean` without."""
    rng = random.Random(f"truths {seed}")
    steps = [
        [
            [f"answer {rng.randrange(101)}" for _ in range(COMPLETIONS)]
            for _ in range(min(GROUPS_A_STEP, groups - first))
        ]
        for first in range(0, groups, GROUPS_A_STEP)
    ]
    with Members(folder, members, share, seed) as judges:
        remote = judges.remote(deadline_s)
        counted = CountedMembers(remote)
        committee = Committee(
            {"rule": lambda completions, **_: [truth(t) for t in completions]}, remote=counted, seed=seed
        )
        committee.group_size = COMPLETIONS
        seconds = {}
        for case in ("clean", "faulty"):
            wrong = skipped = counted.lost_by_one = 0
            started = time.perf_counter()
            for step, of_step in enumerate(steps):
                texts = [text for group in of_step for text in group]
                rewards = committee([f"prompt {step}"] * len(texts), texts)
                wrong += sum(r is not None and abs(r - truth(t)) > RIGHT for r, t in zip(rewards, texts, strict=True))
                skipped += committee.last_outcome.skipped_groups
            seconds[case] = time.perf_counter() - started
            judges.go_wrong()
        committee.close()
    return {
        "groups": groups,
        "wrong_scores": wrong,
        "skipped": skipped,
        "skipped_by_one_judge": counted.lost_by_one,
        "faults_injected": judges.injected,
        "faults_by_kind": dict(sorted(remote.faults.items())),
        "seconds": round(seconds["faulty"], 3),
        "seconds_clean": round(seconds["clean"], 3),
    }


@click.option("--groups", type=click.IntRange(min=1), default=200, help="Groups of eight completions.")
@click.option("--members", type=click.IntRange(min=1), default=4, help="Remote members, in addition to one rule.")
@click.option("--share", type=click.FloatRange(0, 1), default=0.25, help="Share of replies that are faulty.")
@click.option("--deadline", type=float, default=1.0, help="Seconds for all groups of a step.")
@click.option("--seed", type=int, default=1, help="Random seed.")
def bench(groups: int, members: int, share: float, deadline: float, seed: int) -> Report:
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(Path(scratch), groups, members, share, deadline, seed)
    failures = [f"{figures['wrong_scores']} wrong scores"] if figures["wrong_scores"] else []
    if (counted := sum(figures["faults_by_kind"].values())) != figures["faults_injected"]:
        failures.append(f"the committee counted {counted} faults of {figures['faults_injected']}")
    return Report(figures, failures=failures)


STUDY = Study("committee", bench, "--groups 200 --json", "Exit code 1: a reward was wrong, or a fault was not counted.")
