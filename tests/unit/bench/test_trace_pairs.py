"""`bench trace-pairs`, small."""

from __future__ import annotations

import json

import pytest

from oven_bench.trace_pairs.closed_form import expected
from oven_bench.trace_pairs.command import BENCH, SETTINGS
from oven_bench.trace_pairs.scripted_replay import Skills


def test_the_bench_holds_pairs_against_the_formula(capsys: pytest.CaptureFixture[str]) -> None:
    BENCH.run(["--states", "100", "--draws", "4", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["settings"]) == set(SETTINGS)
    assert found["pairs_of_one_family"] == 0
    assert found["planted"]["mean"] > found["shuffled"]["mean"]
    assert min(one["p"] for one in found["settings"].values()) > 1e-3


def test_the_formula_at_its_ends() -> None:
    sure = expected(Skills(student=0.0, families=(1.0, 1.0, 1.0)))
    assert (sure.right, sure.wrong) == (1.0, 0.0)
    blind = expected(Skills(student=0.0, families=(0.0, 0.0, 0.0), actions=2))
    assert blind.right == 0.0
    assert blind.wrong == 0.0, "with two actions all take the other one, and agree"
    with pytest.raises(ValueError, match="2 families"):
        expected(Skills(student=0.5, families=(0.5, 0.5)))
