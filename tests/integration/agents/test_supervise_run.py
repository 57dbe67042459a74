"""`supervise run` over real HTTP, killed by SIGKILL and resumed: the score of a supervisor that follows a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oven_bench.questions.counting_endpoint import CountingEndpoint
from oven_bench.questions.killed_run import measured
from oven_controller.cli.main import run
from oven_llm.supervisor.log import lock

pytest.importorskip("openai")


def test_a_killed_run_is_resumed_to_the_scripts_own_score_and_pays_no_call_twice(tmp_path: Path) -> None:
    found = measured(5, 1, 2, tmp_path)
    assert found["passed"], found
    assert found["resumed"] == found["clean"] and found["clean"]["answer_f1"] == found["own"]["answer_f1"]
    assert 0 < found["own"]["answer_f1"] < 1 and found["refused_at_first"] > 0


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, Any]:
    """The exit code, and what was printed as JSON."""
    with pytest.raises(SystemExit) as ended:
        run(["supervise", *words, "--json"])
    return ended.value.code, json.loads(capsys.readouterr().out)


def test_a_grid_measures_each_pair_and_is_continued_where_one_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    with CountingEndpoint() as endpoint:
        options = ["--base-url", endpoint.url, "--judge-model", "none", "--no-baselines", "--log-dir", str(logs)]
        options += ["--concurrency", "1"]
        models = ["--supervisor-model", "script-supervisor", "--supervisor-model", "away", "--worker-model"]
        code, found = typed(capsys, "grid", "--task", "stdlib", "-n", "2", *models, "script-worker", *options)
        good, bad = found["rows"]
        assert code == 3 and (good["scored"], good["errors"], bad["scored"], bad["errors"]) == (2, 0, 0, 1)
        calls = endpoint.total
        code, again = typed(capsys, "grid", "--resume", found["grid"])
        assert code == 3 and again["rows"][0] == good and endpoint.total == calls
        with pytest.raises(SystemExit) as ended:
            run(["supervise", "grid", "--resume", found["grid"], "--budget-usd", "1"])
        assert ended.value.code == 2 and "a cap in US dollars cannot be kept" in capsys.readouterr().err
        settings = [json.loads(path.read_text()) for path in logs.glob("stdlib/*/config.json")]
        assert [one["budget_usd"] for one in settings] == [None, None], "a cap that cannot be kept is not written down"
    with lock(Path(json.loads(Path(found["grid"]).read_text())[0])), pytest.raises(SystemExit) as ended:
        run(["supervise", "grid", "--resume", found["grid"]])
    assert ended.value.code == 2 and "another process writes to" in capsys.readouterr().err
    code, rows = typed(capsys, "analyze", str(logs / "stdlib"))
    assert code == 0 and {row["supervisor"] for row in rows} == {"script-supervisor", "away"}
