"""`bench judge-bias`: whether the committee notices a judge that scores by place or by length, or is exchanged.

Four simulated judges score groups of six answers, each through the member's real code (controls, reverse order, old
groups and all) and the real committee; only the model behind it is made up. In each run one judge has one planted
fault, or none has. Places and lengths are followed from the first group on; the exchange comes at a drawn group, by a
model of the same quality that has its own opinions. An answer's worth correlates with its length by .3, which a fair
judge shows too. Exit code 1 if a fault was not found within 200 groups, or if more than one run in twenty without one
raised an alarm.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from statistics import median
from types import MappingProxyType
from typing import Annotated, Any, Final

from typer import Option

from oven_bench.bench_command import Bench, FirstSeed, Json, print_object
from oven_core.protocol.committee_requests import JudgeHealth, ScoreRequest
from oven_core.protocol.judge_spec import JudgeSpec
from oven_learner.rewards import Committee
from oven_learner.rewards.live_judges import Named
from oven_learner.rewards.remote_members import read_reply
from oven_learner.rewards.scores import Cost, Verdict
from oven_llm.judges.adversarial_controls import Controls, corpus
from oven_llm.judges.judge import Judge, Watching
from oven_llm.judges.member import Member
from oven_llm.judges.sanitize import shown
from oven_llm.providers.conversation import Conversation, LanguageModel, ModelReply
from oven_llm.providers.usage import Usage
from oven_runs.settings.committee_settings import CommitteeSettings

SIZE: Final = 6
WITHIN: Final = 200
"""Groups in which a fault is to be found."""
CHANGED: Final = (80, 260)
"""Groups before a judge is exchanged: drawn from here. Sixteen old groups are kept by the 64th, and passes over them
are 160 groups apart."""
POINTS: Final = 2.0
"""Of ten, for one standard deviation of worth."""
OPINION, REPEAT = 0.7, 0.2
"""In standard deviations of worth: what a judge holds of an answer for good, and what it says differently each time."""
BY_PLACE, BY_LENGTH = 1.5, 1.0
"""Planted, in points of ten: the first place's lead over the last, and a standard deviation of log length."""
FAULTS: Final = ("order", "length", "change")
"""As the committee's alarms call them."""
COUNTED: Final = frozenset((*FAULTS, "quarantine", "reliability"))
"""Alarms that no judge without a fault should raise."""
_ATTACKS: Final = frozenset(shown(attack.text) for attack in corpus())


def answers(group: int, seed: int) -> Iterator[str]:
    """The distinct answers of one group. Its text says what an answer is worth."""
    rng = random.Random(f"answers {seed} {group}")
    for k in range(SIZE):
        worth = rng.gauss(0, 1)
        words = math.exp(3 + 0.6 * (0.3 * worth + math.sqrt(1 - 0.3**2) * rng.gauss(0, 1)))
        yield f"{worth:.4f} {group} {k}" + " word" * round(words)


class SimulatedModel:
    """A provider of one judge. `fault`: one of FAULTS, or nothing."""

    name, model = "simulated", "m"

    def __init__(self, judge: str, seed: int, fault: str = "") -> None:
        self.version = 1
        self._own, self._fault = f"{judge} {seed}", fault
        self._rng = random.Random(f"repeats {self._own}")

    async def ask(self, conversation: Conversation, timeout_s: float, samples: int = 1) -> list[ModelReply]:
        data = json.loads(conversation.text_of("user").split("<data>\n")[1].split("\n</data>")[0])["answers"]
        verdicts = [
            {"id": one["id"], "reason": "", "score": self._score(one["text"], place / max(1, len(data) - 1))}
            for place, one in enumerate(data)
        ]
        return [ModelReply(json.dumps({"verdicts": verdicts}), model="m", usage=Usage(100, 50))]

    async def close(self) -> None:
        pass

    def _score(self, text: str, place: float) -> int:
        """`place`: from 0, the first, to 1."""
        if text in _ATTACKS:
            return 0
        held = random.Random(f"{self._own} {self.version} {text}").gauss(0, OPINION)
        points = 5 + POINTS * (float(text.split(" ", 1)[0]) + held + self._rng.gauss(0, REPEAT))
        if self._fault == "order":
            points += BY_PLACE * (0.5 - place)
        elif self._fault == "length":
            points += BY_LENGTH * (math.log(text.count("word") or 1) - 3) / 0.6
        return max(0, min(10, round(points)))


class InProcess:
    """Remote members without a bus."""

    deadline_s = 30.0
    judges: Mapping[str, JudgeSpec] = MappingProxyType({})

    def __init__(self, models: Mapping[str, LanguageModel]) -> None:
        set_as = CommitteeSettings()
        self.members = tuple(models)
        self.health: dict[str, JudgeHealth] = {}
        self._loop = asyncio.new_event_loop()
        self._judges = {
            name: Judge(
                "critic",
                model,
                Controls(),
                watching=Watching(set_as.characters, set_as.swapped, set_as.asked_again_every),
            )
            for name, model in models.items()
        }
        self._members = {name: Member(name, judge) for name, judge in self._judges.items()}

    def ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, Named]) -> dict[str, list[Verdict]]:
        return self._loop.run_until_complete(self._ask(requests, members))

    def probe(self, member: str, model: JudgeSpec, *, joins: bool = False) -> Future[str]:
        raise NotImplementedError  # no model is offered here, and nobody comes or goes

    def join(self, member: str) -> None:
        raise NotImplementedError

    def leave(self, member: str) -> None:
        raise NotImplementedError

    def take_reasons(self, member: str, group: str) -> Mapping[str, str]:
        return {}

    def take_cost(self) -> Cost:
        return Cost()

    def close(self) -> None:
        self._loop.close()

    async def _ask(self, requests: Sequence[ScoreRequest], members: Mapping[str, Named]) -> dict[str, list[Verdict]]:
        found: dict[str, list[Verdict]] = {member: [] for member in members}
        for request in requests:
            for member in members:
                reply = await self._members[member].answer(request.wire())
                found[member].append(read_reply(reply.wire(), member, request, self.health)[0])
                await self._judges[member].checks.idle()
        return found


def run(fault: str, seed: int, judges: int = 4) -> tuple[int | None, frozenset[str]]:
    """(groups from the fault's beginning until the alarm on that judge, None where it never came; other alarms)."""
    names = [f"judge{n}" for n in range(judges)]
    models = {name: SimulatedModel(name, seed, fault if name == names[0] else "") for name in names}
    remote = InProcess(models)
    committee = Committee({}, remote=remote, seed=seed)
    committee.group_size = SIZE
    begins = random.Random(f"exchanged {seed}").randrange(*CHANGED) if fault in ("change", "") else 0
    found: int | None = None
    try:
        for group in range(begins + WITHIN):
            if fault == "change" and group == begins:
                models[names[0]].version = 2
            texts = list(answers(group, seed))
            committee([f"question {group}"] * SIZE, texts)
            if fault in committee.watch.alarms[names[0]]:
                found = group + 1 - begins if group >= begins else None
                break
    finally:
        committee.close()
    alarms = {(name, kind) for name, kinds in committee.watch.alarms.items() for kind in kinds & COUNTED}
    return found, frozenset(f"{name} {kind}" for name, kind in alarms - {(names[0], fault)})


def measure(runs: int, seed: int) -> dict[str, Any]:
    """Of each fault how many runs found it, after how many groups, and how many of them raised another alarm."""
    found: dict[str, Any] = {}
    for fault in (*FAULTS, ""):
        of = [run(fault, at) for at in range(seed, seed + runs)]
        after = [groups for groups, _ in of if groups is not None]
        other = sum(bool(alarms) for _, alarms in of)
        if fault:
            found[fault] = {
                "found": len(after),
                "groups_median": median(after) if after else None,
                "groups_most": max(after, default=None),
                "runs_with_another_alarm": other,
            }
        else:
            found["none"] = {
                "runs_with_an_alarm": other,
                "alarms": sorted(kind for _, alarms in of for kind in alarms),
            }
    return found


def bench(
    runs: Annotated[int, Option(min=1, help="Runs of each fault, and without one.")] = 20,
    seed: FirstSeed = 1,
    as_json: Json = False,
) -> int:
    logging.getLogger("oven").setLevel(logging.CRITICAL)  # alarms are counted, not said
    found = measure(runs, seed)
    print_object({"runs": runs, "seed": seed, "within_groups": WITHIN} | found, as_json)
    missed = any(found[fault]["found"] < runs for fault in FAULTS)
    return 1 if missed or found["none"]["runs_with_an_alarm"] > max(1, runs // 20) else 0


BENCH = Bench(
    "judge-bias",
    bench,
    "a judge with a planted bias by place or by length, or exchanged for another: found after how many groups",
    "--json",
)
