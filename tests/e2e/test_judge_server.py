"""A real, small judge: the warm policy behind `examples/judge_server.py`, asked by a committee member over HTTP."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from tests.e2e.conftest import Oven

from oven_core.protocol.committee_requests import Completion, ScoreRequest
from oven_llm import providers
from oven_llm.judges.committee_member import Member
from oven_llm.judges.judge import Judge
from oven_llm.providers.remote_model import RemoteModel
from oven_recipes.grpo.settings import GrpoSettings
from oven_recipes.grpo.sorting_policy import build_tokenizer, warm_policy
from oven_recipes.grpo.sorting_task import HABITS, draw_digits, make_example
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import NO_KEY, catalogue, endpoint_of

ROOT = Path(__file__).resolve().parents[2]
GROUPS = 40
SHORT = GrpoSettings(lengths=(3, 4), hidden=64, ffn=256, sft_steps=200)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def url(oven: Oven, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("judge")
    tokenizer = build_tokenizer()
    policy = warm_policy(SHORT, tokenizer, 0, folder / "cache")
    policy.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    command = [sys.executable, str(ROOT / "examples" / "judge_server.py"), "--likelihood", "--port", "0"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    server = oven.popen([*command, "--model", str(folder / "model")], env=env, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("judging at http://127.0.0.1:"), line
    yield line.split()[-1]
    server.kill()
    server.wait(60)
    server.stdout.close()


def score_request(prompt: str, *texts: str) -> ScoreRequest:
    completions = tuple(Completion(id=os.urandom(6).hex(), text=text) for text in texts)
    return ScoreRequest(run="r", group="g", prompt=prompt, completions=completions, deadline_s=60)


def connected(url: str) -> RemoteModel:
    settings = MemberSettings(provider="compatible", model="warm", base_url=url)
    return providers.connect("critic", endpoint_of("critic", settings, catalogue()), NO_KEY)


async def test_right_answers_rank_above_wrong_ones(url: str) -> None:
    """Never trained on, all of them. The wrong ones are what the warm-up also taught, and what it never taught."""
    provider = connected(url)
    member = Member("critic", Judge("critic", provider))
    draws = random.Random("judge")
    right, habit, foreign, above = [], [], [], []
    for _ in range(GROUPS):
        digits = draw_digits(draws.choice(SHORT.lengths), draws, evaluation=True)
        task = make_example(digits)
        habits = sorted({wrong(digits) for wrong in HABITS} - {task.answer})
        others = [task.answer[:-1], task.answer + task.answer[-1]]
        request = score_request(task.prompt, task.answer, *habits, *others)
        reply = await member.answer(request.wire())
        assert reply.scores is not None, reply.failure
        scores = {completion.text: reply.scores[completion.id] for completion in request.completions}
        right.append(scores[task.answer])
        habit += [scores[text] for text in habits]
        foreign += [scores[text] for text in others]
        above += [scores[task.answer] - scores[text] for text in (*habits, *others)]
    await provider.close()
    print({"right": fmean(right), "habit": fmean(habit), "foreign": fmean(foreign)}, len(above))
    print({"above": fmean(gap > 0 for gap in above), "below": fmean(gap < 0 for gap in above)})
    assert fmean(right) > fmean(habit) > fmean(foreign)
    assert fmean(gap > 0 for gap in above) > 0.8
    assert fmean(gap < 0 for gap in above) < 0.1
    assert not member.faults


async def test_a_task_too_long_for_the_model_is_an_abstention(url: str) -> None:
    provider = connected(url)
    member = Member("critic", Judge("critic", provider))
    reply = await member.answer(score_request("S" + "1" * 500 + "=", "1").wire())
    await provider.close()
    assert (reply.scores, reply.failure) == (None, "bad_request")
