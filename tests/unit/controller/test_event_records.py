"""TensorBoard event files are read as TensorBoard's own loader reads them, without TensorBoard."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY

from oven_controller.importing import event_records
from oven_controller.importing.event_records import DAMAGED, TOO_LARGE, ScalarEvent, masked_checksum, read_events
from oven_controller.importing.importer import TRUNCATED_ROWS

STEPS = range(1, 6)
pytestmark = pytest.mark.filterwarnings(*THIRD_PARTY)


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """A file with everything that PyTorch's writer can write: scalars in both forms, and other kinds of summaries."""
    pytest.importorskip("tensorboard")
    import torch
    from torch.utils.tensorboard.writer import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    for step in STEPS:
        writer.add_scalar("train/loss", math.nan if step == 3 else 1 / step, step, walltime=1000.5 + step)
        writer.add_scalar("größe", -1e-30 * step, step, new_style=True, walltime=1001 + step)
        writer.add_scalar("double", step / 3, step, new_style=True, double_precision=True)
        writer.add_histogram("weights", torch.arange(10.0), step)
    writer.add_text("note", "no number", 2)
    writer.add_image("picture", torch.zeros(3, 4, 4), 2)
    writer.add_scalar("late", 1.0, 1 << 40)
    writer.close()
    (path,) = tmp_path.iterdir()
    return path


def number_of(value: Any) -> float | None:
    """Return the number in a value of a summary, by means of TensorBoard."""
    from tensorboard.util.tensor_util import make_ndarray

    if value.HasField("simple_value"):
        return float(value.simple_value)
    is_scalar = value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars"
    return float(make_ndarray(value.tensor).item()) if is_scalar else None


def test_all_events_are_those_of_tensorboards_loader(events: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    expected = [
        ScalarEvent(event.step, event.wall_time, {value.tag: number_of(value) for value in event.summary.value})
        for event in LegacyEventFileLoader(str(events)).Load()
        if event.HasField("summary")
    ]
    skipped: Counter[str] = Counter()
    assert repr(list(read_events(events, skipped))) == repr(expected) and not skipped
    assert {tag for event in expected for tag, value in event.values.items() if value is not None} == {
        "train/loss", "größe", "double", "late",
    }  # fmt: skip


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_file_that_was_cut_off_is_read_up_to_there(events: Path, cut: int) -> None:
    complete = list(read_events(events, Counter()))
    events.write_bytes(events.read_bytes()[:-cut])
    skipped: Counter[str] = Counter()
    assert repr(list(read_events(events, skipped))) == repr(complete[:-1]) and skipped == {TRUNCATED_ROWS: 1}


def test_a_damaged_record_is_skipped(events: Path) -> None:
    complete, data = list(read_events(events, Counter())), bytearray(events.read_bytes())
    data[data.index(b"train/loss")] ^= 1
    events.write_bytes(data)
    skipped: Counter[str] = Counter()
    assert repr(list(read_events(events, skipped))) == repr(complete[1:]) and skipped == {DAMAGED: 1}


def test_a_record_with_a_large_picture_is_skipped(events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_records, "MAX_RECORD", 150)
    skipped: Counter[str] = Counter()
    tags = {tag for event in read_events(events, skipped) for tag in event.values}
    assert tags >= {"train/loss", "größe", "double", "late"} and "weights" not in tags
    assert skipped[TOO_LARGE] >= len(STEPS) and set(skipped) == {TOO_LARGE}


def test_the_checksum_is_that_of_the_standard() -> None:
    """The check value of CRC-32C (RFC 3720, appendix B.4, has others), with TFRecord's mask."""
    crc = 0xE3069283
    assert masked_checksum(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(message=st.binary(max_size=60))
def test_any_message_with_a_right_checksum_is_read_or_counted(
    message: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    header = len(message).to_bytes(8, "little")
    record = (
        header
        + masked_checksum(header).to_bytes(4, "little")
        + message
        + masked_checksum(message).to_bytes(4, "little")
    )
    path = tmp_path_factory.getbasetemp() / "events.out.tfevents.1"
    path.write_bytes(record)
    skipped: Counter[str] = Counter()
    assert len(list(read_events(path, skipped))) + skipped[DAMAGED] <= 1
