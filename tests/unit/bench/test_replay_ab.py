"""`traces ab`: pairs by mix, the schedule that continues, the report, and one real training of an arm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import replayed_repairs
from tests.support.attached import THIRD_PARTY

from oven_bench.replay_ab.ab_command import AB, SMALL, designed
from oven_bench.replay_ab.ab_design import ARMS, BASE, PRIMARY, AbDesign, Training
from oven_bench.replay_ab.ab_schedule import PLAN, RESULTS, kept, planned, reported, run
from oven_bench.replay_ab.arm_pairs import Replayed, TrainingData, with_random_direction
from oven_bench.replay_ab.arm_training import channels, held_out, train_and_measure
from oven_bench.replay_ab.training_results import TrainingResult, arrays, missing
from oven_core.errors import ConfigError

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    return Replayed.read(*replayed_repairs.write(tmp_path_factory.mktemp("replayed")))


def design(replayed: Replayed, **given: Any) -> AbDesign:
    return AbDesign.model_validate({**SMALL, "pairs": replayed.digest, **given})


def test_pairs_are_those_of_the_mix(replayed: Replayed) -> None:
    assert replayed.families == ("a", "b", "c")
    assert replayed.mixes() == ("all", "without c"), "without a, the others disagree"
    for mix in replayed.mixes():
        pairs = replayed.pairs(mix)
        assert [(one.chosen.calls[0].name, one.rejected.calls[0].name) for one in pairs] == [("edit", "submit")] * 3
    with pytest.raises(ConfigError, match=r"the teachers \(without a\) make no pair"):
        replayed.pairs("without a")
    with pytest.raises(ConfigError, match="no mix of teachers is called 'most'"):
        replayed.pairs("most")


def test_a_coin_turns_half_of_the_pairs(replayed: Replayed) -> None:
    pairs = replayed.pairs("all") * 40
    turned = with_random_direction(pairs, 1)
    as_they_were = sum(one == other for one, other in zip(pairs, turned, strict=True))
    assert 35 < as_they_were < 85 and turned == with_random_direction(pairs, 1) != with_random_direction(pairs, 2)
    assert all({a.chosen, a.rejected} == {b.chosen, b.rejected} for a, b in zip(pairs, turned, strict=True))


def drawn(of: AbDesign, training: Training, data: TrainingData, cache: Path) -> TrainingResult:
    """In the place of a training: the primary arm solves all, the others one task of six."""
    solved = [[int(training.arm == PRIMARY or task % 6 == 0)] * of.samples for task in range(of.tasks)]
    return TrainingResult(seed=training.seed, arm=training.arm, mix=training.mix, solved=solved, cpu_seconds=60)


def test_a_run_that_died_continues_and_a_report_has_all_arms_and_mixes(replayed: Replayed, tmp_path: Path) -> None:
    of = design(replayed, mixes=replayed.mixes())
    assert len(of.trainings) == 2 * (len(ARMS) + 1)
    made: list[Training] = []

    def dies(*given: Any) -> TrainingResult:
        made.append(given[1])
        if len(made) == 5:
            raise OSError("the disk is full")
        return drawn(*given)

    with pytest.raises(OSError, match="the disk is full"):
        run(tmp_path, of, replayed, tmp_path, 1, dies)
    assert len(kept(tmp_path, of).rows) == 4
    with (tmp_path / RESULTS).open("a") as file:
        file.write('{"seed": 900, "arm"')  # it was killed while it wrote
    assert missing(of, kept(tmp_path, of).rows) == list(of.trainings[4:])
    results = run(tmp_path, of, replayed, tmp_path, 1, dies)
    assert [*made[:4], *made[5:]] == list(of.trainings), "none was made twice"
    whole, mixes = arrays(of, results)
    assert set(whole) == set(ARMS) and set(mixes) == {"without c"} and whole[BASE].shape == (2, 6, 2)
    report = reported(planned(of), of, results)
    assert report.verdict == "HELPS" and report.comparisons[PRIMARY].difference == pytest.approx(5 / 6)
    assert report.comparisons["sdpo"].difference == 0 and report.by_mix["without c"][PRIMARY].rate == 1
    with pytest.raises(ConfigError, match="was made with other steps"):
        run(tmp_path, of.model_copy(update={"steps": 3}), replayed, tmp_path, 1, drawn)


def test_the_command_plans_reports_and_takes_a_pilot(replayed: Replayed, tmp_path: Path, capsys: Any) -> None:
    files = [str(path) for path in replayed_repairs.write(tmp_path)]
    assert AB.run([*files, "--out", str(tmp_path / "ab"), "--seeds", "5", "--plan", "--by-mix", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["pairs"] == {"all": 3, "without c": 3} and 0.01 < said["detectable"] < 0.3
    assert not (tmp_path / "ab").exists()
    of = design(Replayed.read(*map(Path, files)))
    run(tmp_path / "ab", of, replayed, tmp_path, 1, drawn)
    assert AB.run([*files, "--out", str(tmp_path / "ab"), "--dry-run", "--json"]) == 0, "all is there already"
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "HELPS" == found["comparisons"][PRIMARY]["verdict"] and set(found["comparisons"]) == set(
        ARMS
    ) - {BASE}
    assert {path.name for path in (tmp_path / "ab").iterdir()} == {
        RESULTS, PLAN, "report.txt", "report.json", "report.svg",
    }  # fmt: skip
    told = found["plan"]["detectable"]
    assert AB.run([*files, "--out", str(tmp_path / "ab"), "--dry-run", "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["plan"]["detectable"]
        == told
        == json.loads((tmp_path / "ab" / PLAN).read_text())["detectable"]
    )
    pilot = tmp_path / "ab" / RESULTS
    assert planned(of.model_copy(update={"first_seed": 1}), pilot).basis.startswith("variances of a pilot")
    for pilot_file, message in ((pilot, "has seeds of this run"), (tmp_path / "none", "has no results")):
        with pytest.raises(ConfigError, match=message):
            planned(of, pilot_file)
    pilot.write_text("".join(pilot.read_text().splitlines(keepends=True)[:5]))
    with pytest.raises(ConfigError, match="is not complete"):
        planned(of.model_copy(update={"first_seed": 1}), pilot)


def test_designs_that_answer_nothing_are_refused(replayed: Replayed, tmp_path: Path) -> None:
    assert designed(SMALL, ["hidden=32", "replay=0.2"]).recipe.hidden == 32
    for given, settings, message in (
        ({"arms": ("grpo", "sdpo")}, [], "the arms grpo and replay decide"),
        ({"arms": ("grpo", "replay", "dpo")}, [], "--arm 'dpo': name each once, of grpo"),
        ({}, ["hidden"], "has no value"),
        ({}, ["hide=3"], "hide: Extra inputs"),
        ({}, ["replay=-1"], "replay: Input should be greater than 0"),
        ({"seeds": 1}, [], "seeds: Input should be greater than or equal to 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            designed({**SMALL, **given}, settings)
    traces, replies = replayed_repairs.write(tmp_path)
    other = tmp_path / "other.jsonl"
    other.write_text(replies.read_text().replace('"trace":"t', '"trace":"u'))
    with pytest.raises(ConfigError, match="has no reply to a trace of"):
        Replayed.read(traces, other)


def test_no_arm_is_measured_on_a_function_that_a_trace_shows(replayed: Replayed) -> None:
    of = design(replayed, tasks=20)
    data = replayed.data("all")
    assert len(data.shown) == 3 and all(map(data.has_shown, data.shown))
    before = held_out(of, data)
    told = "elsewhere.py: " + before[3].problem_statement.partition(": ")[2]
    after = held_out(of, TrainingData(data.pairs, data.shown | {told}))
    assert len(before) == len(after) == 20 and before[3] not in after and after[:3] == before[:3]
    everything = frozenset(one.problem_statement for one in of.recipe.tasks("a/b held out", 60, evaluation=True))
    with pytest.raises(ConfigError, match="0 of 60 held-out tasks are about functions that no trace shows"):
        held_out(of, TrainingData(data.pairs, everything))


TINY: dict[str, Any] = {
    "hidden": 16, "layers": 1, "heads": 1, "ffn": 32, "demonstrations": 8, "sft_batch": 4, "sft_steps": 1,
    "prompts_per_step": 1, "group_size": 2, "train_tasks": 4, "max_completion_length": 32,
}  # fmt: skip


def test_an_arm_is_trained_and_measured_the_same_each_time(replayed: Replayed, tmp_path: Path) -> None:
    of = design(replayed, steps=1, tasks=2, samples=2, settings=TINY)
    data = replayed.data("all")
    found = train_and_measure(of, Training(900, "both", "all"), data, tmp_path)
    assert [len(task) for task in found.solved] == [2, 2]
    assert {"channel/replay", "channel/replay/accuracy", "channel/replay/margin"} <= set(found.gauges)
    assert found.gauges["channel/sdpo/hinted"] == 1, "each failed attempt is told which tests fail"
    again = train_and_measure(of, Training(900, "both", "all"), data, tmp_path)
    assert (again.gauges, again.reward, again.solved) == (found.gauges, found.reward, found.solved)
    names = {arm: [one.name for one in channels(of, Training(900, arm, "all"), data.pairs)] for arm in ARMS}
    assert names == {
        "grpo": [], "sdpo": ["sdpo"], "replay": ["replay"], "both": ["sdpo", "replay"],
        "random-direction": ["replay"], "sft": ["imitation"],
    }  # fmt: skip
