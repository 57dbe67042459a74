"""What a saved policy thinks of actions, and what `traces pairs --policy` makes of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.command_line import call
from tests.support.scripted_replay import Skills, scripted
from tests.support.traces import REPAIR, called

from oven_learner.losses.pair_tokens import end_tokens, rendered
from oven_recipes.repair.action_scores import action_scores
from oven_recipes.repair.chat_format import END, build_tokenizer
from oven_recipes.repair.settings import RepairSettings
from oven_recipes.repair.warm_policy import build_model
from oven_runs.traces import jsonl


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of random weights."""
    folder = tmp_path_factory.mktemp("policy")
    torch.manual_seed(0)
    words = build_tokenizer(["read median.py", "submit"])
    build_model(RepairSettings(hidden=16, layers=1, heads=2, ffn=16), words).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def test_a_score_is_the_sum_of_the_tokens_log_probabilities(policy: Path) -> None:
    state, actions = REPAIR.state(1), (called("submit"), called("read", path="median.py"))
    ((short, long),) = action_scores(policy, [(state, REPAIR.tools, actions)])
    assert short is not None
    assert long is not None
    assert long < short < 0, "a longer action has more tokens to be unsure of"
    assert list(action_scores(policy, [(state, REPAIR.tools, actions[:1])])) == [(short,)]
    beyond = called("read", path="x" * 5000)
    assert list(action_scores(policy, [(state, REPAIR.tools, (beyond,))])) == [(None,)], "it is outside the window"


def test_a_turn_ends_where_the_policys_generation_does() -> None:
    words: Any = build_tokenizer(["read median.py", "submit"])
    model = build_model(RepairSettings(hidden=16, layers=1, heads=2, ffn=16), words)
    turn = words.convert_tokens_to_ids(END)
    words.eos_token = "<pad>"  # as a tokenizer says whose sequences end otherwise than its turns
    assert end_tokens(words, model) == {words.eos_token_id, turn}
    model.generation_config.eos_token_id = [turn]
    ends = end_tokens(words, model)
    _, (action,) = rendered(words, REPAIR.state(1), REPAIR.tools, [called("submit")], ends)
    assert action is not None and action[-1] == turn, "the template's line break is not sampled"


def test_pairs_are_tested_on_the_policys_log_ratios(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = scripted(Skills(student=0.4, families=(0.7, 0.7, 0.7)), 20, random.Random(2))
    jsonl.write(tmp_path / "traces.jsonl", replay.traces)
    jsonl.write(tmp_path / "replies.jsonl", replay.replies)
    files = [str(tmp_path / "traces.jsonl"), str(tmp_path / "replies.jsonl")]
    assert call("traces pairs", [*files, "--policy", str(policy), "--permutations", "19", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["log_ratio"]["pairs"] <= found["pairs"]
    assert 0.05 <= found["log_ratio"]["p"] <= 1
