"""A metric's history: fewer points, and none that was not measured."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from oven_runs.log.metric_history import thinned


@given(st.lists(st.floats(), max_size=300), st.integers(5, 40))
def test_thinning_keeps_ends_extremes_and_non_finite_values(values: list[float], most: int) -> None:
    kept = thinned(values, most)
    assert kept == sorted(set(kept)) and len(kept) == len(values) if len(values) <= most else len(kept) <= most
    if not values:
        return
    assert kept[0] == 0 and kept[-1] == len(values) - 1
    told = [values[index] for index in kept]
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        assert min(finite) in told and max(finite) in told
    assert any(not math.isfinite(value) for value in told) == (len(finite) < len(values))
