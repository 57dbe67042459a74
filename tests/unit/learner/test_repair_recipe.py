"""The recipe `repair` at sizes that take a second: words, demonstrations, warm-up, trainer, `traces collect`."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.command_line import call
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_core.errors import ConfigError, ProcessError
from oven_learner.testing import FakeLink
from oven_recipes.environments.repair_task_generator import TrustedTests, generate_tasks
from oven_recipes.repair.chat_format import ASSISTANT_HEADER, END
from oven_recipes.repair.demonstrations import Habits, demonstrate
from oven_recipes.repair.settings import RepairSettings, parse_start
from oven_recipes.repair.training_job import build, count_lines
from oven_recipes.repair.warm_policy import CONTEXT_WEIGHT, answer_mask, collate, policy_tokenizer, warm_policy
from oven_runs.traces import jsonl

TINY = RepairSettings(
    hidden=16, layers=1, heads=2, ffn=16, demonstrations=40, sft_batch=4, sft_steps=4, sft_eval_every=2, train_tasks=8,
    sft_tasks=4, warmup_target=0.0, eval_tasks=2, eval_every=1, max_steps=2, prompts_per_step=2, group_size=2,
    max_completion_length=64,
)  # fmt: skip
SETTINGS = [f"--set={name}={json.dumps(value)}" for name, value in TINY.model_dump(exclude_defaults=True).items()]
"""As options of `traces collect`."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_each_word_of_the_tasks_is_a_token_and_any_text_survives() -> None:
    words: Any = policy_tokenizer()
    for task in generate_tasks("other", 50, with_neighbour=True):
        text = f"{task.problem_statement}\n{task.files[task.problem_statement.partition(':')[0]]}"
        assert words.decode(words(text)["input_ids"]) == text
        statement_words = task.problem_statement.partition(") ")[2].split()
        assert {len(words(f" {word}")["input_ids"]) for word in statement_words} == {1}
    odd = 'naïve "quoted" \\n ☃\t<tool_call>'
    assert words.decode(words(odd)["input_ids"]) == odd
    assert policy_tokenizer().get_vocab() == words.get_vocab()


def test_the_policys_answers_are_told_from_what_it_reads() -> None:
    words: Any = policy_tokenizer()
    messages = demonstrate(generate_tasks(0, 1)[0], Habits(), random.Random(0))
    ids: list[int] = words.apply_chat_template(messages, tokenize=True, return_dict=False)
    scored = answer_mask(ids, words)
    text = words.decode([token for token, answer in zip(ids, scored, strict=True) if answer])
    assert text.count(END) == sum(message["role"] == "assistant" for message in messages)
    assert "<|im_start|>" not in text and text.endswith(f"done{END}") and ASSISTANT_HEADER not in text
    rows = [(ids, scored), (ids[:5], scored[:5])]
    padded, mask, weights = collate(rows, words)
    assert padded.shape == mask.shape == weights.shape == (2, len(ids))
    assert (
        mask[1].sum() == 5
        and weights[1, 5:].sum() == 0
        and set(weights[0].tolist()) == {1.0, torch.tensor(CONTEXT_WEIGHT).item()}
    )


def test_the_warm_policy_is_kept_and_training_it_leaves_no_trace(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = torch.get_rng_state()
    with caplog.at_level(logging.INFO):
        first, _ = warm_policy(TINY, 1, cache, TrustedTests())
    assert caplog.messages[0] == f"preparing: warm-up: step 0 of {TINY.sft_steps}"
    assert "step 2, loss" in caplog.text and "step 4" not in caplog.text  # at a share of 0 the first round ends it
    assert torch.equal(torch.get_rng_state(), state)
    again, _ = warm_policy(TINY, 1, cache, TrustedTests())
    weights = [torch.cat([parameter.flatten() for parameter in model.parameters()]) for model in (first, again)]
    assert torch.equal(*weights)
    other_seed, _ = warm_policy(TINY, 2, cache, TrustedTests())
    assert not torch.equal(weights[0], torch.cat([parameter.flatten() for parameter in other_seed.parameters()]))
    with caplog.at_level(logging.WARNING):
        warm_policy(TINY.model_copy(update={"warmup_target": 1.0}), 1, cache, TrustedTests())
    assert "allow more steps (sft_steps)" in caplog.text


def test_a_job_trains_records_each_rollout_and_measures_what_is_held_out(cache: Path, tmp_path: Path) -> None:
    job = build(TINY, parse_start("tuned", 1, TINY), 1, tmp_path / "checkpoints", cache)
    state = torch.get_rng_state()
    measured = job.evaluate()
    assert torch.equal(torch.get_rng_state(), state)
    assert len(measured["eval/solved"]) == TINY.eval_tasks and set(measured) == {"eval/solved", "eval/tests_passing"}  # type: ignore[arg-type]
    job.attach(link=FakeLink())
    job.trainer.train()
    logged = job.trainer.state.log_history[0]
    assert "rewards/reward/mean" in logged and "tools/call_frequency" in logged
    traces = list(jsonl.read(tmp_path / "traces.jsonl"))
    assert Counter(trace.policy.step for trace in traces) == {0: 4, 1: 4}
    assert count_lines(tmp_path / "traces.jsonl") == len({trace.id for trace in traces}) == 8
    assert {trace.task.split for trace in traces} == {"train"}


class TestCollect:
    def test_it_writes_as_many_as_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("OVEN_HOME", str(tmp_path))
        out = tmp_path / "traces.jsonl"
        assert call("traces collect", [str(out), "-n", "3", "--json", *SETTINGS]) == 0
        printed = capsys.readouterr()
        report = json.loads(printed.out)
        assert not printed.err, "no progress of a library's"
        assert (report["traces"], report["tasks"]) == (3, 2)
        traces = list(jsonl.read(out))
        assert len(traces) == 3 and {trace.task.split for trace in traces} == {"collected"}
        with pytest.raises(ConfigError, match="already exists"):
            call("traces collect", [str(out)])

    def test_an_interrupted_command_continues_with_the_same_traces(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("OVEN_HOME", str(tmp_path))
        options = ["-n", "7", *SETTINGS]  # two batches of 2 tasks with 2 attempts each
        assert call("traces collect", [str(tmp_path / "straight.jsonl"), *options]) == 0
        evaluate, batches = GRPOTrainer.evaluate, []

        def interrupted(trainer: Any, **arguments: Any) -> Any:
            batches.append(arguments)
            if len(batches) == 2:
                raise ProcessError("interrupted")
            return evaluate(trainer, **arguments)

        out = tmp_path / "interrupted.jsonl"
        monkeypatch.setattr(GRPOTrainer, "evaluate", interrupted)
        with pytest.raises(ProcessError):
            call("traces collect", [str(out), *options])
        [partial] = tmp_path.glob("interrupted.jsonl.*.partial")
        assert len(list(jsonl.read(partial))) == 4 and not out.exists()
        caplog.clear()
        assert call("traces collect", [str(out), *options]) == 0
        assert len(batches) == 3 and "collecting: rollout 4 of 8" in caplog.text
        assert out.read_bytes() == (tmp_path / "straight.jsonl").read_bytes() and not partial.exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--set", "hidden"], "must have the form KEY=VALUE"),
            (["--set", "hidden=big"], "hidden = 'big' .*valid integer"),
            (["--set", "hidden=["], "is not valid YAML"),
            (["--set", "function_kinds=[cube]"], "unknown kind of function 'cube'"),
            (["--set", "hiden=3"], "did you mean 'hidden'"),
            (["--instances", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        ],
    )
    def test_a_wrong_option_is_named(self, arguments: list[str], message: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=message):
            call("traces collect", [str(tmp_path / "traces.jsonl"), *arguments])
        with pytest.raises(ConfigError, match="there is no folder"):
            call("traces collect", [str(tmp_path / "nowhere" / "traces.jsonl")])

    def test_an_instance_without_its_repository_is_refused_before_anything_is_trained(self, tmp_path: Path) -> None:
        row = generate_tasks(0, 1)[0].model_dump(exclude={"files"}) | {
            "repo": "django/django",
            "FAIL_TO_PASS": '["tests/a.py::b"]',
        }
        (tmp_path / "lite.jsonl").write_text(json.dumps(row) + "\n")
        options = [str(tmp_path / "traces.jsonl"), "--instances", str(tmp_path / "lite.jsonl")]
        with pytest.raises(ConfigError, match=r"django/django, but there is no clone at .*django__django; clone it"):
            call("traces collect", [*options, "--repositories", str(tmp_path)])
