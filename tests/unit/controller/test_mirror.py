"""log.jsonl as it grows beside the store: cut, longer or shorter than that, or saying something else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.replayed import a_run
from tests.unit.controller.test_spool import files_of_at_most

from oven_core.protocol.events import Event
from oven_runs.home.log_mirror import Mirror

EVENTS = a_run().events
TEXT = "".join(event.line() + "\n" for event in EVENTS)


def fed(path: Path, events: list[Event]) -> Mirror:
    mirror = Mirror(path)
    for event in events:
        mirror.add(event)
    mirror.finish()
    mirror.close()
    return mirror


@settings(max_examples=50)
@given(share=st.floats(0, 1), again=st.integers(0, len(EVENTS)))
def test_a_file_cut_at_any_byte_is_completed_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, share: float, again: int
) -> None:
    path = tmp_path_factory.mktemp("mirror") / "log.jsonl"
    path.write_text(TEXT[: round(share * len(TEXT))])
    mirror = fed(path, EVENTS[:again])
    assert mirror.renamed_file is None and mirror.fault == ""
    mirror = fed(path, EVENTS)
    assert path.read_text() == TEXT and mirror.extra_events == 0 and mirror.seq == len(EVENTS)


def test_flushed_events_are_in_the_file(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "log.jsonl")
    for event in EVENTS[:4]:
        mirror.add(event)
    mirror.flush()
    assert (tmp_path / "log.jsonl").read_text() == TEXT[: len("".join(e.line() + "\n" for e in EVENTS[:4]))]
    mirror.close()


def test_if_file_and_store_differ_both_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    different = TEXT.replace('"verdict":"adopted"', '"verdict":"rejected"')
    path.write_text(different)
    mirror = fed(path, EVENTS)
    assert mirror.renamed_file == tmp_path / "log.differs-1.jsonl" and mirror.renamed_file.read_text() == different
    assert path.read_text() == TEXT
    first = next(
        n for n, (first, two) in enumerate(zip(TEXT.splitlines(), different.splitlines(), strict=True)) if first != two
    )
    assert mirror.first_different_seq == EVENTS[first].seq
    path.write_text(different)
    assert fed(path, EVENTS).renamed_file == tmp_path / "log.differs-2.jsonl"


def test_events_that_the_store_lost_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(TEXT + '{"seq": 999, "ti')
    assert fed(path, EVENTS[:-3]).extra_events == 3, "its end"
    assert path.read_text() == TEXT
    path.write_text(TEXT)
    assert fed(path, EVENTS[5:]).renamed_file is None, "its beginning"
    assert path.read_text() == TEXT


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    mirror = Mirror(path)
    with files_of_at_most(len(TEXT.encode()) - 100):
        for event in EVENTS:
            mirror.add(event)
            mirror.flush()
    assert mirror.fault == "File too large"
    with pytest.raises(OSError, match="File too large"):
        mirror.finish()
    mirror.close()
    assert TEXT.startswith(path.read_text()) and path.read_text().endswith("\n") and path.stat().st_size > 1000
    fed(path, EVENTS)
    assert path.read_text() == TEXT, "when there is room again"
