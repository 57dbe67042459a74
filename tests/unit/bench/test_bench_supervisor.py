"""`bench supervisor`: the table of causes, what is kept apart, and what its rows come to."""

from __future__ import annotations

import pytest

from oven_bench.diagnosis import planted_causes as planted
from oven_bench.diagnosis.command import SETS, code_hash, main
from oven_bench.diagnosis.diagnosed_run import Named, Row
from oven_bench.diagnosis.diagnosis_figures import figures
from oven_bench.gym.faults import catalogue
from oven_core.errors import ConfigError
from oven_kg.checked_graph import load


def test_the_final_set_has_other_families_seeds_and_tasks_and_every_cause_is_a_node() -> None:
    known, graph = catalogue.families(), load()
    for causes, healthy, _ in SETS.values():
        assert {graph.nodes[one].kind for named in causes.values() for one in named} == {"cause"}
        assert not any(known[family].healthy for family in causes) and all(known[family].healthy for family in healthy)
    assert not set(planted.DEVELOPMENT) & set(planted.FINAL)
    assert not set(planted.DEVELOPMENT_HEALTHY) & set(planted.FINAL_HEALTHY)
    assert not set(planted.DEVELOPMENT_SEEDS) & set(planted.FINAL_SEEDS) and len(planted.FINAL_SEEDS) >= 5
    tasks = {family.partition(".")[0] for family in planted.FINAL} - {
        family.partition(".")[0] for family in planted.DEVELOPMENT
    }
    assert tasks == {"wide", "images", "dpo", "long_grpo"}


def row(family: str, seed: int, detectors: Named, programs: Named, *, healthy: bool = False, onset: int = 100) -> Row:
    return Row(family, "k", seed, healthy, onset, detectors, programs, 1000, 100, 2, None, 0.1)


RIGHT, LATE, WRONG, NOTHING = Named("a", 101), Named("a", 130), Named("c", 99), Named("none", None)
REFUSED = Named("none", None, "evidence_differs")


def test_its_figures_are_of_families_with_a_floor_and_a_verdict() -> None:
    causes = {"k.one": ("a", "b"), "k.two": ("c",)}
    rows = [row("k.one", seed, WRONG, RIGHT) for seed in (1, 2)] + [row("k.two", seed, RIGHT, WRONG) for seed in (1, 2)]
    rows += [row("k.one", 3, NOTHING, LATE), row("k.two", 3, REFUSED, REFUSED)]
    rows += [row("k.well", seed, RIGHT, NOTHING, healthy=True) for seed in (1, 2)]
    found = figures(rows, causes, (3.0, 15.0))
    assert (found["runs"], found["families"], found["healthy_families"]) == (8, 2, 1)
    assert found["detectors"]["cause_right"]["value"] == 0.0 and found["detectors"]["said_nothing"] == 2
    assert found["programs"]["cause_right"]["value"] == pytest.approx((1 + 2 / 3) / 2, abs=1e-4)
    assert found["programs"]["onset_error_median"] == 1 and found["programs"]["onset_near"]["value"] == 0.8
    assert found["programs"]["refused"] == {"evidence_differs": 1}
    assert found["detectors"]["false_alarms"]["value"] == 1.0 and found["programs"]["false_alarms"]["value"] == 0.0
    assert found["floor"]["right"]["value"] == 0.5 and found["floor"]["cause"] in ("a", "b", "c")
    assert found["programs"]["usd_each"] == pytest.approx(0.0045) and found["programs"]["usd"] == 0.036
    assert found["verdict"] == "HELPS" and found["fewer_false_alarms"]["value"] == 1.0
    assert found["by_family"]["k.well"] == {"runs": 2, "detectors": 0, "programs": 2, "said": {"none": 2}}


def test_a_model_that_fails_raises_no_fewer_alarms_and_nothing_is_no_verdict() -> None:
    causes = {"k.one": ("a",), "k.two": ("c",)}
    healthy = [row("k.well", 1, RIGHT, NOTHING, healthy=True), row("k.well", 2, RIGHT, REFUSED, healthy=True)]
    found = figures([row("k.one", 1, WRONG, RIGHT), *healthy], causes, (3.0, 15.0))
    assert found["programs"]["false_alarms"]["value"] == 0.0 and found["programs"]["refused"] == {"evidence_differs": 1}
    assert found["by_family"]["k.well"]["programs"] == 1 and found["verdict"] == "INCONCLUSIVE", "of one family"
    gone = figures([row("k.well", 1, RIGHT, REFUSED, healthy=True)], causes, (3.0, 15.0))
    assert gone["programs"]["false_alarms"] is gone["difference"] is gone["fewer_false_alarms"] is None
    assert gone["verdict"] == "INCONCLUSIVE"


def test_bad_options_are_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match="no family of the set development has 'nope' in its name"):
        main(only="nope")
    with pytest.raises(ConfigError, match="--seeds x has 'x'; give numbers"):
        main(seeds="x")
    assert len(code_hash()) == 12 and code_hash() == code_hash()
