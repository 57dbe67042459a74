"""`bench committee --http`: LLM judges as a run has them, asked over real HTTP, a quarter of whose answers are faulty.

The endpoint, each member and the bus's server are processes; both SDKs are in use, half of the members each. Every
honest answer tells the truth, so that another score is a wrong one. First without faults (client CPU, and the same
groups again: from the cache), then with a quarter of all requests failing in fourteen ways, each of which a member has
to count by its kind. Last, endpoints that never answer in time: what they do ends by the deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from oven_bench.judging.endpoint_process import running_endpoint, served
from oven_bench.judging.faulty_members import COMPLETIONS, GROUPS_A_STEP, RIGHT
from oven_bench.judging.judge_endpoint import KINDS
from oven_controller.stack.plan import Plan
from oven_core.bus.connection import Bus
from oven_core.errors import ProcessError
from oven_core.protocol import names
from oven_core.protocol.committee_requests import ScoreRequest
from oven_core.security.credentials import Credentials
from oven_learner.rewards import Committee
from oven_learner.rewards.live_judges import Named
from oven_learner.rewards.remote_members import RemoteMembers
from oven_learner.rewards.scores import Abstention, Verdict
from oven_runs.home import judge_states
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.process.child import Child
from oven_runs.server.embedded import EmbeddedServer
from oven_runs.settings.committee_settings import CommitteeSettings, MemberSettings

PROVIDERS: Final = {"openai": "compatible", "anthropic": "claude"}
"""SDK → a provider that is asked through it."""
APIS: Final = tuple(PROVIDERS)
READY_S: Final = 60.0
"""Seconds until a member that was started listens: it imports an SDK first."""
WARM_UP: Final = 2
"""Groups before the CPU time is measured: the first calls import and connect."""
LATE_S: Final = 3.0
"""Deadline in seconds of the endpoints that never answer in time."""
LATE: Final = {"retry_after_300": "laterx999", "hung": "hangx999", "dead": ""}
"""Name → the endpoint's script; no one listens at the address of the dead one."""
_COUNTED = re.compile(r"faults on the way: (.*)")


def truth(text: str) -> float:
    return int(text.rsplit(" ", 1)[1]) / 10


class Watched(RemoteMembers):
    """The remote members, with a count of the scores that are not the truth."""

    wrong = 0

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, Named]) -> dict[str, list[Verdict]]:
        found = super().ask(requests, members)
        for given in found.values():
            for request, verdict in zip(requests, given, strict=True):
                if not isinstance(verdict, Abstention):
                    right = [truth(completion.text) for completion in request.completions]
                    self.wrong += sum(abs(a - b) > RIGHT for a, b in zip(verdict, right, strict=True))
        return found


class Stage:
    """A bus, and members on it."""

    def __init__(self, folder: RunFolder, server: EmbeddedServer, url: str) -> None:
        self.url = url
        self._folder, self._plan = folder, Plan(folder, server.url)
        self._server = server

    @asynccontextmanager
    async def members(
        self, scripts: Mapping[str, tuple[str, str]], *, probed: bool = True
    ) -> AsyncIterator[dict[str, Child]]:
        """Name → the process of a member, each given by its API and the script that its model's name holds. With
        `probed` not before each has had an end of the call that it makes at its start."""
        settings = {name: self._settings(api, script) for name, (api, script) in scripts.items()}
        committee = CommitteeSettings(members=settings)
        self._folder.config.write_text(f'{{"committee": {committee.model_dump_json()}}}')
        children: dict[str, Child] = {}
        try:
            for name in scripts:
                children[name] = await self._plan.member(name).start()
            admin = Credentials.load(self._folder.add_user("admin", "admin"))
            async with Bus.connect(self._server.url, admin) as bus:
                for child, name in zip(children.values(), scripts, strict=True):
                    await self._listens(bus, child, names.reward(name))
                while probed and not scripts.keys() <= judge_states.read(self._folder.path).keys():
                    await asyncio.sleep(0.05)
            yield children
        finally:
            await asyncio.gather(*(child.end(10.0) for child in children.values()))

    def committee(self, members: Sequence[str], deadline_s: float, seed: int) -> tuple[Committee, Watched]:
        key = Credentials.load(self._folder.add_user("learner", "learner"))
        watched = Watched(members, self._server.url, key, deadline_s=deadline_s)
        committee = Committee({}, remote=watched, seed=seed, description="A bench.")
        committee.group_size = COMPLETIONS
        return committee, watched

    def _settings(self, api: str, script: str) -> MemberSettings:
        address = self.url if script else "http://127.0.0.1:9"  # the port of `discard`: nobody listens
        at = f"{address}/v1" if api == "openai" else address
        return MemberSettings(provider=PROVIDERS[api], model=f"m@{script}", base_url=at)

    @staticmethod
    async def _listens(bus: Bus, child: Child, subject: str) -> None:
        async with asyncio.timeout(READY_S):
            while not await bus.has_listener(subject):
                if child.returncode is not None:
                    raise ProcessError(f"{child.name} did not start; the end of its log:\n{child.tail()}")
                await asyncio.sleep(0.05)


async def measure(folder: Path, groups: int, members: int, deadline_s: float, seed: int) -> dict[str, Any]:
    """The bench's figures; `seconds` is for all groups, `seconds_clean` for the same without faults."""
    run = Home(folder).create("bench", "committee")
    async with contextlib.AsyncExitStack() as running:
        url = await running.enter_async_context(running_endpoint(seed))
        server = await EmbeddedServer.start(run.server, folder / "nats-server.log")
        running.push_async_callback(server.stop)
        stage = Stage(run, server, url)
        return {"groups": groups, "members": members} | {
            **await _faulty(stage, groups, members, deadline_s, seed),
            **await _clean(stage, groups, members, deadline_s, seed),
            **await _late(stage, seed),
        }


async def _clean(stage: Stage, groups: int, members: int, deadline_s: float, seed: int) -> dict[str, Any]:
    judges = {f"clean{n}": (APIS[n % len(APIS)], ",") for n in range(members)}
    async with stage.members(judges) as processes:
        committee, watched = stage.committee(tuple(judges), deadline_s, seed)
        await asyncio.to_thread(_judge, committee, _texts(WARM_UP, seed, "warm-up"))
        before, cpu = await served(stage.url), {name: _cpu_s(child) for name, child in processes.items()}
        texts = _texts(groups, seed, "groups")
        wrong, skipped, seconds, _ = await asyncio.to_thread(_judge, committee, texts)
        after = await served(stage.url)
        spent = {name: _cpu_s(child) - cpu[name] for name, child in processes.items()}
        await asyncio.to_thread(_judge, committee, texts)
        again = await served(stage.url)
        await asyncio.to_thread(committee.close)
    calls = (after - before).total() / members
    by_api = {api: [spent[name] for name in judges if judges[name][0] == api] for api in APIS}
    return {
        "wrong_scores_clean": wrong + watched.wrong,
        "skipped_clean": skipped,
        "seconds_clean": round(seconds, 2),
        "client_cpu_ms": {api: round(1000 * sum(of) / len(of) / calls, 2) for api, of in by_api.items() if of},
        "requests_for_the_same_groups": (again - after).total(),
    }


async def _faulty(stage: Stage, groups: int, members: int, deadline_s: float, seed: int) -> dict[str, Any]:
    judges = {f"judge{n}": (APIS[n % len(APIS)], "chaos") for n in range(members)}
    async with stage.members(judges) as processes:
        before = await served(stage.url)
        committee, watched = stage.committee(tuple(judges), deadline_s, seed)
        wrong, skipped, seconds, abstained = await asyncio.to_thread(_judge, committee, _texts(groups, seed, "groups"))
        await asyncio.to_thread(committee.close)
    injected: Counter[str] = Counter()
    for fault, count in (await served(stage.url) - before).items():
        if fault != "ok":
            injected[KINDS[fault]] += count
    counted = sum((_faults(child) for child in processes.values()), Counter[str]())
    return {
        "wrong_scores": wrong + watched.wrong,
        "skipped": skipped,
        "abstained": dict(sorted(abstained.items())),
        "faults_injected": injected.total(),
        "faults_by_kind": dict(sorted(counted.items())),
        "faults_not_counted": (injected - counted).total(),
        "seconds": round(seconds, 2),
    }


async def _late(stage: Stage, seed: int) -> dict[str, Any]:
    """How long the learner waits for a judge whose endpoint does not answer in time, by SDK, and what it is told."""
    found: dict[str, Any] = {}
    judges = {f"{name}-{api}": (api, script) for name, script in LATE.items() for api in APIS}
    async with stage.members(judges, probed=False):
        for name in judges:
            committee, _ = stage.committee((name,), LATE_S, seed)
            _, _, seconds, abstained = await asyncio.to_thread(_judge, committee, _texts(1, seed, name))
            await asyncio.to_thread(committee.close)
            found[name] = {"seconds": round(seconds, 2), "abstained": dict(abstained)}
    return {"late_deadline_s": LATE_S, "late": found}


def _texts(groups: int, seed: int, salt: str) -> list[list[str]]:
    """Groups of answers that no two runs, and no two groups, have in common."""
    rng = random.Random(f"{salt} {seed}")
    return [
        [f"answer {n} of {salt} {group} is worth {rng.randrange(11)}" for n in range(COMPLETIONS)]
        for group in range(groups)
    ]


def _judge(committee: Committee, groups: Sequence[Sequence[str]]) -> tuple[int, int, float, Counter[str]]:
    """(wrong rewards, groups skipped, seconds, abstentions by kind)."""
    wrong = skipped = 0
    abstained: Counter[str] = Counter()
    started = time.perf_counter()
    for at in range(0, len(groups), GROUPS_A_STEP):
        step = groups[at : at + GROUPS_A_STEP]
        texts = [text for group in step for text in group]
        prompts = [f"How much, in group {at + n}?" for n, group in enumerate(step) for _ in group]
        rewards = committee(prompts, texts)
        wrong += sum(r is not None and abs(r - truth(t)) > RIGHT for r, t in zip(rewards, texts, strict=True))
        skipped += committee.last.skipped
        abstained += committee.last.abstained
    return wrong, skipped, time.perf_counter() - started, abstained


def _cpu_s(child: Child) -> float:
    times = psutil.Process(child.pid).cpu_times()
    return float(times.user + times.system)


def _faults(child: Child) -> Counter[str]:
    """What a member that has ended counted, from the last line of its log."""
    found = _COUNTED.findall(child.log.read_text())
    listed = [part.rsplit(" ", 1) for part in found[-1].split(", ")] if found and found[-1] != "none" else []
    return Counter({kind: int(count) for kind, count in listed})


def passed(found: Mapping[str, Any]) -> bool:
    """Whether the figures reach what is promised: nothing wrong, next to nothing skipped, all counted, all in time."""
    late = all(of["seconds"] <= found["late_deadline_s"] + 0.5 for of in found["late"].values())
    right = not (found["wrong_scores"] or found["wrong_scores_clean"] or found["faults_not_counted"])
    return right and late and found["skipped"] <= 0.01 * found["groups"]
