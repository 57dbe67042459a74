"""Parcels through a pipe: whole, in order and once, however little room there is and however they are looked for."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oven_learner.link.pipes import Inlet, Outlet, SharedNumbers, pack, pack_plain

atoms = st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=5)
parcels = st.one_of(
    st.tuples(st.integers(-(2**63), 2**63), atoms).map(lambda value: (value, pack_plain(value))),
    st.binary(max_size=200_000).map(lambda value: (value, pack(value))),
)


@settings(deadline=None)
@given(st.lists(st.tuples(parcels, st.booleans(), st.booleans()), max_size=40))
def test_everything_arrives_in_order(parcels_sent: list[tuple[tuple[Any, bytes], bool, bool]]) -> None:
    reading, writing = os.pipe()
    inlet, outlet = Inlet(reading), Outlet(writing)
    came: list[Any] = []
    try:
        for (_, parcel), posted, looks in parcels_sent:
            if posted:
                outlet.post(parcel)
            else:
                while not outlet.put(parcel):
                    came += inlet.take()
            if looks:
                came += inlet.take()
        while not outlet.flush():
            came += inlet.take()
        assert outlet.is_idle
        outlet.close()
        while not inlet.is_exhausted:
            came += inlet.take()
    finally:
        inlet.close()
        outlet.close()
    assert came == [value for (value, _), _, _ in parcels_sent]


def test_writing_without_a_reader_reports_no_room() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    outlet = Outlet(writing)
    accepted, idle = outlet.put(pack("word")), outlet.is_idle
    assert (accepted, idle) == (False, True)
    outlet.post(pack("word"))
    assert not outlet.is_idle
    outlet.close()


def test_only_plain_values_can_be_packed_as_atoms() -> None:
    with pytest.raises(ValueError, match="unmarshallable"):
        pack_plain((object(),))


def test_a_counted_event_is_visible_to_the_other_process() -> None:
    mine = SharedNumbers()
    theirs = SharedNumbers(os.dup(mine.fd))
    before = mine.cells[0]
    theirs.count_event()
    assert mine.cells[0] == theirs.cells[0] != before
    for numbers in (mine, theirs):
        numbers.close()
