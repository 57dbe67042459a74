"""A process alone, and what several would say of a change; several themselves are in tests/integration."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core.errors import ConfigError
from oven_learner.actuators import ChangeResult, describe_difference
from oven_learner.ranks import Ranks


def test_a_single_process_gets_its_own_values_back(caplog: pytest.LogCaptureFixture) -> None:
    alone = Ranks.join(processes=1)
    assert alone.leader and alone.broadcast("a") == "a" and alone.all_gather(1) == [1]
    assert alone.broadcast_if_any(lambda: "news") == "news"
    assert alone.mean({"loss": 2.0}, ["loss", "other"]) == {"loss": 2.0}
    with caplog.at_level(logging.ERROR, "oven.learner"):
        assert alone.broadcast_if_any(lambda: 1 // 0) is None
    assert "ZeroDivisionError" in caplog.text


def test_processes_that_torch_does_not_know_of_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"counts 2 processes, but torch\.distributed has 1, .*torchrun"):
        Ranks.join(processes=2)


APPLIED = st.builds(
    ChangeResult, st.sampled_from(["applied", "noop", "rejected", "unknown"]), after=st.sampled_from([None, 1.0, 2.0])
)


@given(st.lists(APPLIED, min_size=1, max_size=5))
def test_ranks_differ_when_one_has_another_value_or_another_success(each: list[ChangeResult]) -> None:
    kinds = {(applied.status in ("applied", "noop"), applied.after) for applied in each}
    assert bool(describe_difference(each)) == (len(kinds) > 1)


def test_a_difference_names_the_rank() -> None:
    text = describe_difference(
        [ChangeResult("applied", 1.0, 2.0), ChangeResult("rejected", 1.0, 1.0, "MemoryError: none left")]
    )
    assert text == "rank 0 has 2.0 (applied) and rank 1 has 1.0 (rejected: MemoryError: none left)"
