"""A metric's history: fewer points, and none that was not measured."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from oven_runs.log.metric_history import select_indices


@given(st.lists(st.floats(), max_size=300), st.integers(5, 40))
def test_thinning_keeps_ends_extremes_and_non_finite_values(values: list[float], most: int) -> None:
    indices = select_indices(values, most)
    assert (
        indices == sorted(set(indices)) and len(indices) == len(values) if len(values) <= most else len(indices) <= most
    )
    if not values:
        return
    assert indices[0] == 0 and indices[-1] == len(values) - 1
    retained = [values[index] for index in indices]
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        assert min(finite) in retained and max(finite) in retained
    assert any(not math.isfinite(value) for value in retained) == (len(finite) < len(values))
