"""The spool file: intact, cut at any byte, of another run, held by a live learner, on a full disk."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.own_home import invoke
from tests.support.replayed import a_run, left_behind

from oven_core.errors import ConfigError
from oven_core.protocol.events import Entry
from oven_core.protocol.messages import RunEnded
from oven_learner.link import spool as spooling
from oven_runs.access.log_sources import exported_events
from oven_runs.home.learner_spool import (
    HEAD_BYTES,
    NAME,
    Spool,
    SpoolContent,
    SpooledMessage,
    count_permanently_lost,
    read_spool,
)
from oven_runs.home.run_folder import Home


def messages(count: int) -> list[SpooledMessage]:
    spooled_messages = [
        SpooledMessage("oven.r.observation", b'{"n":%d,"loss":1.0}' % n, f"1-{n}-abc", "sig") for n in range(1, count)
    ]
    end = RunEnded(incarnation=1, n=count, reason="completed", tick=count, step=count)
    return [*spooled_messages, SpooledMessage("oven.r.run", end.wire(), f"1-{count}-abc", "sig")]


def spooled(folder: Path, batch: list[SpooledMessage]) -> Path:
    spool = Spool.lock(folder, "r", create=True)
    assert spool is not None
    spool.reset()
    assert spool.save(batch) == len(batch)
    spool.close()
    return folder / NAME


def test_messages_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    batch = messages(12)
    spooled(tmp_path, [batch[-1], *batch[:-1]])
    content = read_spool(tmp_path, "r")
    assert content == SpoolContent(tuple(batch)) and content.observation_count == 11
    assert content.run_end is not None and content.run_end.reason == "completed"
    assert content.summary() == "12 messages of the learner (11 observations, including the run's end)"


@settings(max_examples=60)
@given(share=st.floats(0, 1))
def test_a_cut_file_gives_its_whole_lines_and_the_number_of_lost_ones(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    batch = messages(9)
    path = spooled(folder, batch)
    data = path.read_bytes()
    size = HEAD_BYTES + round(share * (len(data) - HEAD_BYTES))
    path.write_bytes(data[:size])
    content = read_spool(folder, "r")
    whole = data[:size].count(b"\n") - 1
    assert content.messages == tuple(batch[:whole]) and content.lost == 9 - whole
    assert (f"{content.lost} lost messages" in content.summary()) == bool(content.lost)


def test_an_altered_line_counts_as_lost(tmp_path: Path) -> None:
    path = spooled(tmp_path, messages(3))
    path.write_bytes(path.read_bytes().replace(b'"n":2', b'"n":7'))
    content = read_spool(tmp_path, "r")
    assert [message.message_id for message in content.messages] == ["1-1-abc", "1-3-abc"] and content.lost == 1


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"", "nothing"),
        (b'{"spool": 1, "ru', "is damaged: its first line does not say which run its messages belong to; move it away"),
        (b"[]\n", "is damaged"),
        (
            json.dumps({"spool": 1, "run": "q", "messages": 3, "lost": 0}).encode() + b"\n",
            "contains messages of run 'q'",
        ),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_with_a_remedy(tmp_path: Path, head: bytes, words: str) -> None:
    (tmp_path / NAME).write_bytes(head)
    if not head:
        assert read_spool(tmp_path, "r").is_empty
        return
    for attempt in (lambda: read_spool(tmp_path, "r"), lambda: Spool.lock(tmp_path, "r", create=True)):
        with pytest.raises(ConfigError, match=words):
            attempt()
    assert (tmp_path / NAME).read_bytes() == head, "it is left as it is"


def test_while_a_learner_holds_the_spool_nothing_is_missing_and_no_other_can_take_it(tmp_path: Path) -> None:
    spool = Spool.lock(tmp_path, "r", create=True)
    assert spool is not None
    spool.reset()
    assert read_spool(tmp_path, "r").is_empty and Spool.lock(tmp_path, "r", wait_s=0) is None
    spool.close()  # as a kill does
    assert read_spool(tmp_path, "r").has_unknown_loss
    again = Spool.lock(tmp_path, "r", wait_s=0)
    assert again is not None
    again.remove()
    again.close()
    assert not (tmp_path / NAME).exists() and read_spool(tmp_path, "r").is_empty


def test_lost_messages_are_still_counted_when_the_rest_is_in_the_log(tmp_path: Path) -> None:
    path = spooled(tmp_path, messages(9))
    path.write_bytes(path.read_bytes()[:-1])
    for _ in range(2):
        spool = Spool.lock(tmp_path, "r")
        if spool is not None:
            spool.remove()
            spool.close()
    assert count_permanently_lost(tmp_path, "r") == 1 and not path.exists()


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_on_a_full_disk_the_first_line_has_the_number_of_messages(tmp_path: Path) -> None:
    spool = Spool.lock(tmp_path, "r", create=True)
    assert spool is not None
    spool.reset()
    batch = messages(50)
    with files_of_at_most(2000):
        written = spool.save(batch)
    spool.close()
    content = read_spool(tmp_path, "r")
    assert 3 < written < 50 and content.messages == tuple(batch[:written]) and content.lost == 50 - written


def test_on_a_full_disk_the_runs_end_is_saved_before_observations(tmp_path: Path) -> None:
    spool = spooling.open_spool(str(tmp_path), "r")
    assert spool is not None
    letters = [Entry(message.subject, message.data, message.message_id) for message in messages(50)]
    with files_of_at_most(2000):
        written = spooling.write_unsent(spool, letters, None)
    content = read_spool(tmp_path, "r")
    assert 3 < written == len(content.messages) < 50 and content.run_end is not None and content.run_end.n == 50
    assert content.messages[:3] == tuple(replace(message, signature="") for message in messages(50)[:3]), (
        "the oldest first"
    )


def test_a_spool_of_another_run_in_a_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    folder = left_behind(Home(), a_run())
    spooled(tmp_path, messages(3)).rename(folder.path / NAME)
    text = (folder.path / NAME).read_bytes().replace(b'"run": "r"', b'"run": "q"')
    (folder.path / NAME).write_bytes(text)
    for command in (["log", "r"], ["replay", "r"]):
        assert invoke(*command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "contains messages of run 'q', but this is run 'r': move it to" in error
    assert invoke("status", "r") == 3
    assert "contains messages of run 'q'" in capsys.readouterr().out


def test_without_a_store_the_spool_is_appended_to_log_jsonl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And so is the mesh's answer, which a replay would miss."""
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    log = a_run(end=False)
    log.propose("amy", 0.25, confidence=0.9)  # a ballot that the end leaves open
    folder = left_behind(Home(), log)
    folder.write_info(replace(folder.info(), mirrored=True))
    end = RunEnded(incarnation=1, n=log.n, reason="completed", tick=9, step=9)
    spooled(folder.path, [SpooledMessage("oven.r.run", end.wire(), "1-99-abc", "")])
    with folder.export.open("a") as out:
        out.write('{"seq": 99, "ti')  # and it was killed as it wrote
    for _ in range(2):
        assert invoke("replay", "r", "--verify") == 0
        captured = capsys.readouterr()
        assert "byte for byte" in captured.out
        assert "the store of run 'r' is gone: its log is log.jsonl" in captured.err
    events = list(exported_events(folder))
    assert [type(event.body).__name__ for event in events[len(log.events) :]][:2] == ["RunEnded", "Decision"]
    assert not (folder.path / NAME).exists()
