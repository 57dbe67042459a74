"""The experiment with the source's swarm: its figures from made-up runs, and tiny real ones, continued."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.attached import THIRD_PARTY
from tests.support.installed import installed

from oven_bench.gym.arms.controller import controller_link, prior
from oven_bench.source_swarm import runs
from oven_bench.source_swarm.arms import ARMS, Scores, applied
from oven_bench.source_swarm.command import BENCH
from oven_bench.source_swarm.figures import COMPARED, Row, compared, figures
from oven_bench.training.paired_runs import QUICK
from oven_core import plugins
from oven_core.errors import ConfigError
from oven_core.protocol.messages import AgentStatus
from oven_recipes.grpo.job import build
from oven_recipes.runner import prepared

pytestmark = [pytest.mark.usefixtures("installed"), *(pytest.mark.filterwarnings(text) for text in THIRD_PARTY)]
__all__ = ["installed"]


def rows(arm: str, served: Sequence[float], first: int = 1) -> list[Row]:
    return [
        Row(arm=arm, seed=seed, served=bits, exact=bits - 0.1, turned={"grad.clip": 2, "channel.kg": 3}, cpu_s=1.0)
        for seed, bits in enumerate(served, first)
    ]


def test_a_gain_is_paired_by_seed_and_said_in_a_word() -> None:
    alone = [2.50, 2.60, 2.40, 2.55, 2.45]
    better = rows("ours", [bits - 0.10 - 0.01 * (n % 2) for n, bits in enumerate(alone)])
    found = compared([*rows("alone", alone), *better], "ours", "alone")
    assert found is not None
    assert (found["seeds"], found["verdict"], found["verdict_exact"]) == (5, "HELPS", "HELPS")
    assert found["mean"] == pytest.approx(0.104) and 0 < found["low"] < found["mean"] < found["high"]
    four = compared([*rows("alone", alone[:4]), *better], "ours", "alone")
    assert four is not None and (four["seeds"], four["verdict"]) == (4, "INCONCLUSIVE")
    assert compared([*rows("alone", alone), *rows("ours", [2.0], first=9)], "ours", "alone") is None


def test_the_object_names_what_changed_and_the_headline() -> None:
    bits = [2.5, 2.6, 2.4, 2.55, 2.45]
    found = figures([row for arm in ARMS for row in rows(arm, bits)], {"steps": 300})
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["verdict"] == "NO EFFECT" and found["seeds"] == [1, 2, 3, 4, 5] and found["cpu_s"] == 40.0
    assert [(gain["arm"], gain["over"]) for gain in found["gains"]] == list(COMPARED)
    assert found["changes_per_run"]["ours"] == {"channel.kg": 3.0, "grad.clip": 2.0}
    assert figures(rows("ours", bits), {})["verdict"] == "INCONCLUSIVE", "nothing to compare with"


def test_every_arm_is_compared_and_those_of_one_experiment_begin_alike() -> None:
    assert {arm for pair in COMPARED for arm in pair} == set(ARMS)
    files: dict[Scores, str] = {"graph": "g", "shuffled": "s"}
    starts = {name: arm.start(files) for name, arm in ARMS.items()}
    assert starts["alone"] == starts["source.as_coded"] == starts["source.as_written"] == starts["ours"]
    assert starts["ours"]["kg_weight"] == 0.3 and starts["ours"]["mtp_weight"] == 0.1
    assert starts["ours.shuffled"] == starts["ours"] | {"token_prior": "s"}
    assert "token_prior" not in starts["ours.without"] and starts["plain"]["mtp_weight"] == 0


def test_tiny_runs_turn_the_sources_knobs_and_are_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "rows.jsonl"
    options = ["--quick", "--arm", "alone", "source.as_coded", "ours", "--results", str(kept), "--home", str(tmp_path)]
    assert BENCH.run([*options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == [1, 2] and found["verdict"] == "INCONCLUSIVE", "two seeds say nothing"
    turned = found["changes_per_run"]
    assert turned["alone"] == {} and turned["source.as_coded"]["channel.kg"] == 4
    assert turned["source.as_coded"]["train.quantisation"] == turned["source.as_coded"]["channel.mtp"] == 1
    assert turned["ours"]["channel.kg"] == 3, "the stages of `knowledge`"
    assert len(set(found["bits_per_byte_served"].values())) == 3 and found["blob_bytes"] <= 1024

    monkeypatch.setattr(runs, "play", None)  # nothing is played again
    assert BENCH.run([*options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gains"] == found["gains"]
    with pytest.raises(ConfigError, match="made with other steps"):
        BENCH.run([*options, "--steps", "30"])
    with pytest.raises(ConfigError, match="give at least 2"):
        BENCH.run(["--seeds", "3"])


def test_the_curriculum_fires_where_levels_have_rewards_and_the_knobs_that_it_lacks_are_named(tmp_path: Path) -> None:
    """The sorting task from its easy level alone, with the real mesh and agents; the other agents of the source's
    knobs fire in a run of pretrain (tests/e2e/test_source_swarm_knobs.py)."""
    link = controller_link("starved", ("curriculum", "knowledge", "quantisation", "auxiliary_loss"), prior(None))
    options = {**dict(QUICK), "max_steps": 10}
    recipe = plugins.load("recipes", "recipe", "grpo")
    job = prepared(recipe, build, options, "drill:easy-only", 1, tmp_path / "run", tmp_path / "cache")
    job.attach(link=link)
    job.trainer.train()
    [turned] = applied(link)
    assert turned.actuator == "data.mixture" and isinstance(turned.after, dict) and min(turned.after.values()) > 0.2
    said = [(event.author, event.body) for event in link.events if isinstance(event.body, AgentStatus)]
    silent = {author: body.reason for author, body in said if body.state == "cannot_fire"}
    assert {author: reason.split(":")[0] for author, reason in silent.items()} == {
        "auxiliary_loss": "the run announces no channel.<name> beside a metric channel/<name>",
        "knowledge": "the run announces no channel.kg",
        "quantisation": "the run announces no train.quantisation",
    }
