"""The calibrated reward over judges that are asked over real HTTP: no wrong reward, none in an outage, nothing of the
stated confidence shown to a judge."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from datasets import Dataset
from nats.aio.msg import Msg
from tests.support.attached import THIRD_PARTY, llama
from tests.support.judge_endpoint import KINDS, Endpoint
from tests.unit.learner.test_attach_trl import COMMON
from tests.unit.learner.test_rewards_skipping import Remembering, same
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_bench.committee import MembersOnAThread
from oven_core.bus.connection import Bus
from oven_core.protocol.messages import Observation, RunStarted
from oven_learner.hf.attach import attach
from oven_learner.rewards import Committee
from oven_learner.rewards.calibrated_reward import FORMAT_COST, KNOB, CalibratedReward, parse_oracle_output
from oven_learner.rewards.verdicts import Abstention
from oven_llm.judges.committee_member import Member
from oven_llm.judges.judge import Judge
from oven_llm.judges.rubric_prompts import Rubric
from oven_llm.providers import connect
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import catalogue, endpoint_of

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

PROVIDERS = {"openai": "compatible", "anthropic": "claude"}
SIZE, GROUPS, A_STEP = 4, 96, 24
LAMBDA = 0.5
DEADLINE_S = 4.0
"""Of a group: an endpoint that hangs is given up after two thirds of it."""


class Outage(Endpoint):
    """Refuses every call while `down`."""

    down = False

    def _fault(self, model: str) -> str:
        return "401" if self.down else super()._fault(model)


class HttpJudges(MembersOnAThread):
    """LLM judges as members have them, each by the API and the script that its endpoint follows."""

    def __init__(self, folder: Path, scripts: Mapping[str, tuple[str, str]], seed: int = 0) -> None:
        super().__init__(folder, list(scripts))
        self.endpoint = Outage(seed)
        self.members: dict[str, Member] = {}
        self._scripts = scripts
        self._running: Any = None
        self._tasks: set[asyncio.Task[None]] = set()

    def answering(self, bus: Bus, member: str) -> Callable[[Msg], Awaitable[None]]:
        async def answer(message: Msg) -> None:
            await bus.publish(message.reply, (await self.members[member].answer(message.data)).wire())

        async def answer_aside(message: Msg) -> None:
            task = asyncio.create_task(answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return answer_aside

    async def _open(self) -> None:
        self._running = self.endpoint.running()
        await self._running.__aenter__()
        for name, (api, script) in self._scripts.items():
            url = self.endpoint.openai_url if api == "openai" else self.endpoint.url
            settings = MemberSettings(provider=PROVIDERS[api], model=f"m@{script}", base_url=url)
            provider = connect(name, endpoint_of(name, settings, catalogue()), "sk-canary-6e02")
            self.members[name] = Member(name, Judge(Rubric("informativeness"), provider))
        await super()._open()

    async def _close(self) -> None:
        await super()._close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for member in self.members.values():
            assert isinstance(member.judge, Judge)
            await member.judge.close()
        await self._running.__aexit__(None, None, None)


def worth(text: str) -> float:
    """What the endpoint's judges make of an answer when nothing goes wrong."""
    return int(text.rsplit(" ", 1)[1]) / 10 if text else 0.0


def by_worth(completions: list[str], **_: Any) -> list[float | None]:
    return [worth(text) for text in completions]


def group(number: int, rng: random.Random) -> list[tuple[str, float]]:
    """A group's completions, and what each of them earns."""
    made = []
    for n in range(SIZE):
        level, percent = rng.randrange(11), rng.randrange(101)
        answer = f"answer {n} of {number} is worth {level}"
        merit = level / 10
        kind = rng.randrange(4)
        if kind == 0:
            forms = (answer, f"[epistemic status: 101] {answer}", f"[epistemic status: {percent}]")
            made.append((rng.choice(forms), FORMAT_COST))
        elif kind == 1:  # tries to show the judge how sure it is
            made.append((f"[epistemic status: {percent}] [epistemic status: 100] {answer}", FORMAT_COST))
        else:
            made.append((f"[epistemic status: {percent}] {answer}", merit - LAMBDA * (percent / 100 - merit) ** 2))
    return made


def shown(endpoint: Endpoint) -> list[dict[str, Any]]:
    """The data blocks that the judges were asked about."""
    users = [body["messages"][-1]["content"] for body in endpoint.requests]
    return [json.loads(user.split("<data>\n")[1].split("\n</data>")[0]) for user in users]


@pytest.mark.slow
def test_faulty_judges_give_no_wrong_reward_and_see_no_confidence(tmp_path: Path) -> None:
    rng = random.Random(7)
    groups = [group(number, rng) for number in range(GROUPS)]
    wrong = skipped = 0
    with HttpJudges(tmp_path, {"one": ("openai", "chaos"), "two": ("anthropic", "chaos")}, seed=11) as judges:
        committee = Committee(
            {"rule": by_worth}, remote=judges.remote(DEADLINE_S), quorum=3, calibration=CalibratedReward(LAMBDA)
        )
        committee.group_size = SIZE
        for start in range(0, GROUPS, A_STEP):
            rows = [row for group in groups[start : start + A_STEP] for row in group]
            numbers = [number for number in range(start, start + A_STEP) for _ in range(SIZE)]
            rewards = committee(
                ["Layer: 3\n ? ? \nwhat is it worth?"] * len(rows),
                [text for text, _ in rows],
                text=[f"text {number}" for number in numbers],
                question=[f"what is {number} worth?" for number in numbers],
            )
            pairs = zip(rewards, [earned for _, earned in rows], strict=True)
            wrong += sum(reward is not None and not abs(reward - earned) < 1e-9 for reward, earned in pairs)
            skipped += committee.last_outcome.skipped_groups
            lost = {
                index
                for index, verdicts in enumerate(committee.evidence.verdicts)
                if any(isinstance(verdict, Abstention) for verdict in verdicts.values())
            }
            none = {row // SIZE for row, reward in enumerate(rewards) if reward is None}
            assert none == lost, "a group that a judge did not score has no reward, and every other has"
        committee.close()
    assert wrong == 0 and skipped < GROUPS / 2
    served = judges.endpoint.served
    faults = sum(count for outcome, count in served.items() if outcome in KINDS)
    assert faults > 0.15 * served.total() and len(served) > 8, served
    seen = shown(judges.endpoint)
    requests_text = json.dumps(seen) + json.dumps([body["messages"][0] for body in judges.endpoint.requests])
    assert "epistemic" not in requests_text.lower() and "Layer:" not in requests_text
    assert all("Text:\ntext " in request["task"] and "worth?" in request["task"] for request in seen)


SPECIAL = ("<pad>", "<s>", "</s>")


def answers_tokenizer() -> PreTrainedTokenizerFast:
    """Each token but the first is a whole answer in the form, so that one token is a completion."""
    answers = [f"[epistemic status: {4 * n}] it is worth {n % 11}" for n in range(26)]
    words = {word: n for n, word in enumerate([*SPECIAL, "a", *answers])}
    made = Tokenizer(WordLevel(words, unk_token="<s>"))
    made.pre_tokenizer = Split("", "isolated")
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


class Watch(Remembering):
    """The endpoint is down for the generations of the steps in `AWAY`."""

    AWAY = range(4, 24)

    endpoint: Outage

    def send(self, make: Any) -> None:
        super().send(make)
        if isinstance(self.sent[-1], Observation):
            self.endpoint.down = self.sent[-1].step in self.AWAY


STEPS = 28
CALIBRATED = ("informativeness/mean", "confidence/mean", "confidence/std", "calibration/ece", "advantage/std")


def test_an_outage_of_twenty_steps_leaves_the_weights_as_they_were(tmp_path: Path) -> None:
    set_seed(3)
    with HttpJudges(tmp_path, {"judge": ("openai", ",")}) as judges:
        committee = Committee(
            {}, remote=judges.remote(DEADLINE_S), quorum=1, hold_after=100, calibration=CalibratedReward(LAMBDA)
        )
        trainer = GRPOTrainer(
            model=llama(),
            reward_funcs=[committee],
            args=GRPOConfig(
                output_dir=str(tmp_path / "out"), num_generations=4, per_device_train_batch_size=16,
                max_completion_length=1, weight_decay=0.1, scale_rewards="none",
                generation_kwargs={"suppress_tokens": list(range(len(SPECIAL)))}, **(COMMON | {"max_steps": STEPS}),
            ),
            train_dataset=Dataset.from_list(
                [{"prompt": "a", "text": f"text {n}", "question": "what is it worth?"} for n in range(8)]
            ),
            processing_class=answers_tokenizer(),
        )  # fmt: skip
        line = Watch({25: (KNOB, 0.25)})
        line.trainer, line.endpoint = trainer, judges.endpoint
        attach(trainer, committee=committee, link=line)
        trainer.train()
    seen = line.observed()
    away = [step in Watch.AWAY for step in range(STEPS)]
    assert [bool(observation.metrics["committee/skipped_steps"]) for observation in seen] == away
    for step in range(1, STEPS):
        assert same(line.states[step], line.states[step - 1]) == away[step], f"step {step + 1}"
    for observation, gone in zip(seen, away, strict=True):
        assert all((name in observation.metrics) != gone for name in (*CALIBRATED, "reward", "loss")), "absent, not 0"
        assert all(math.isfinite(observation.metrics[name]) for name in CALIBRATED if not gone)
    kinds = Counter(
        name for observation in seen for name in observation.metrics if name.startswith("committee/abstain/")
    )
    assert kinds == {"committee/abstain/auth": 20}
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    (knob,) = [spec for spec in run.actuators if spec.name == KNOB]
    assert (knob.low, knob.high, knob.value, knob.moves_own_metric) == (0, 1, LAMBDA, True)
    assert {*CALIBRATED, "calibration/ece_null", "calibration/unparsed"} <= {spec.name for spec in run.metrics}
    assert [(receipt.actuator, receipt.status, receipt.after) for receipt in line.receipts()] == [
        (KNOB, "applied", 0.25)
    ]
    groups = committee.evidence.groups
    written = [parse_oracle_output(text) for group in groups for text in group.originals]
    assert committee.last_outcome.rewards == pytest.approx(
        [FORMAT_COST if a is None else worth(a.text) - 0.25 * (a.confidence - worth(a.text)) ** 2 for a in written]
    ), "from the step after on, λ is what was set"
