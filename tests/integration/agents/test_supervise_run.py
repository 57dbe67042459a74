"""`supervise run` over real HTTP, killed by SIGKILL and resumed: the score of a supervisor that follows a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from oven_bench.questions.killed_run import measured

pytest.importorskip("openai")


def test_a_killed_run_is_resumed_to_the_scripts_own_score_and_pays_no_call_twice(tmp_path: Path) -> None:
    found = measured(6, 1, 2, tmp_path)
    assert found["passed"], found
    assert found["resumed"] == found["clean"] and found["clean"]["answer_f1"] == found["own"]["answer_f1"]
    assert 0 < found["own"]["answer_f1"] < 1 and found["refused_at_first"] > 0
