"""Reading a log with a cache gives the same views and errors as reading it without one."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import recorded

from oven_bench.performance.decided_run import DecidedRun
from oven_controller.stack.run_status import run_status
from oven_core.cancellation import end
from oven_core.errors import OvenError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted, Vote
from oven_core.protocol.operator_messages import OperatorKey
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring, Signer
from oven_runs.access import brief_log, log_cache
from oven_runs.access.brief_log import BriefLog
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_cache import FILE, KEY_FILE, LogCache, read_with_cache, refresh
from oven_runs.access.run_access import LogView
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.log.explanation import Explanations
from oven_runs.log.run_summary import RunSummary

EVENTS = 1500
MIN_BYTES, TAIL_BYTES = 5_000, 2_000
VIEWS: list[type[LogView]] = [RunSummary, Explanations]


@pytest.fixture(scope="module", autouse=True)
def small_limits() -> Iterator[None]:
    """Save caches of small logs too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_cache, "MIN_BYTES", MIN_BYTES)
        patch.setattr(brief_log, "TAIL_BYTES", TAIL_BYTES)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def decided(home: Home) -> RunFolder:
    folder = home.create("decided", "bench")
    DecidedRun(folder).write(EVENTS)
    return folder


@pytest.fixture(params=["decided", *recorded.stored()])
def run(request: pytest.FixtureRequest, decided: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of a long run, or a recorded run, without a cache."""
    if request.param == "decided":
        return copy_of(decided, tmp_path)
    events = recorded.events(request.param)
    folder = Home(tmp_path).create(recorded.run_of(events), "recorded")
    folder.export.write_text("".join(event.line() + "\n" for event in events))
    return folder


def copy_of(folder: RunFolder, home: Path) -> RunFolder:
    path = home / "runs" / folder.run
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(folder.path, path)
    (path / FILE).unlink(missing_ok=True)
    return RunFolder(path)


def lines_of(folder: RunFolder) -> list[bytes]:
    return folder.export.read_bytes().splitlines(keepends=True)


def read_plainly(folder: RunFolder, view: LogView, *, growing: bool = False) -> str:
    """Feed the log to the view without a cache, and return the error, if any."""
    keyring = Keyring(folder.pin())
    try:
        for event in BriefLog(folder, growing=growing):
            view.feed(keyring.verify(event))
    except OvenError as error:
        return str(error)
    return ""


def read_saved(folder: RunFolder, view: LogView, *, growing: bool = False) -> str:
    try:
        read_with_cache(folder, view, growing=growing)
    except OvenError as error:
        return str(error)
    return ""


def assert_same_views(folder: RunFolder, *, growing: bool = False) -> None:
    for kind in VIEWS:
        plain, saved = kind(), kind()
        assert read_saved(folder, saved, growing=growing) == read_plainly(folder, plain, growing=growing)
        assert shown(saved) == shown(plain)


def shown(view: LogView) -> str:
    """Return the whole state. Unlike ==, this distinguishes 1 from 1.0 and a tuple from a list, and NaN equals NaN."""
    state = {name: sorted(value) if isinstance(value, set) else value for name, value in vars(view).items()}
    return re.sub(r"TzInfo\((0|UTC)\)", "datetime.timezone.utc", repr(state))


def is_used(folder: RunFolder) -> bool:
    saved = LogCache(folder, growing=False)
    return not saved.fault and saved.log.seq > 0


def ends_with_line_to_skip(folder: RunFolder) -> bool:
    """Whether the log has a line in its last TAIL_BYTES at which a BriefLog stops skipping."""
    log = BriefLog(folder)
    list(log)
    return log.is_at_tail


def test_views_from_a_cache_are_those_of_the_log(run: RunFolder) -> None:
    refresh(run, growing=False)
    assert is_used(run) == ends_with_line_to_skip(run)
    assert_same_views(run)


@pytest.mark.parametrize("first_view", VIEWS)
def test_a_cache_has_both_views_whichever_view_was_read_first(
    decided: RunFolder, first_view: type[LogView], tmp_path: Path
) -> None:
    folder = copy_of(decided, tmp_path)
    read_with_cache(folder, first_view(), growing=False)
    assert is_used(folder)
    assert_same_views(folder)


def test_status_is_the_same_with_and_without_a_cache(run: RunFolder) -> None:
    without = asyncio.run(run_status(LocalRun(run)))
    assert is_used(run) == ends_with_line_to_skip(run)
    assert asyncio.run(run_status(LocalRun(run))).model_dump_json() == without.model_dump_json()


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_log_that_grows_in_any_portions_is_read_as_at_once(
    data: st.DataObject, decided: RunFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copy_of(decided, tmp_path_factory.getbasetemp() / "growing")
    lines = lines_of(folder)
    cuts = data.draw(st.lists(st.integers(1, len(lines)), max_size=4).map(sorted))
    partial_bytes = data.draw(st.integers(0, 50))
    for cut in [*cuts, len(lines)]:
        rest = lines[cut][:partial_bytes] if cut < len(lines) else b""
        folder.export.write_bytes(b"".join(lines[:cut]) + rest)
        assert_same_views(folder, growing=True)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_log_is_read_as_without_a_cache(
    data: st.DataObject, decided: RunFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copy_of(decided, tmp_path_factory.getbasetemp() / "changed")
    refresh(folder, growing=False)
    lines = lines_of(folder)
    number = data.draw(st.integers(0, len(lines) - 1))
    change = data.draw(st.sampled_from(["flip", "remove", "repeat", "swap", "cut"]))
    if change == "flip":
        position = data.draw(st.integers(0, len(lines[number]) - 1))
        changed = bytearray(lines[number])
        changed[position] ^= data.draw(st.integers(1, 255))
        lines[number] = bytes(changed)
    elif change == "remove":
        del lines[number]
    elif change == "repeat":
        lines.insert(number, lines[number])
    elif change == "swap":
        lines[number - 1], lines[number] = lines[number], lines[number - 1]
    else:
        lines[number:] = [lines[number][:-5]]
    folder.export.write_bytes(b"".join(lines))
    assert_same_views(folder)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_changed_cache_is_never_used(
    data: st.DataObject, decided: RunFolder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = copy_of(decided, tmp_path_factory.getbasetemp() / "forged")
    refresh(folder, growing=False)
    content = bytearray((folder.path / FILE).read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[position] ^= data.draw(st.integers(1, 255))
    else:
        del content[position:]  # as a crash in the middle of a write could leave it
    (folder.path / FILE).write_bytes(content)
    assert not is_used(folder)
    assert_same_views(folder)


def test_a_forged_summary_with_a_mac_of_another_key_is_not_used(decided: RunFolder, tmp_path: Path) -> None:
    folder, copied_run = copy_of(decided, tmp_path / "home"), copy_of(decided, tmp_path / "second_home")
    refresh(folder, growing=False)
    refresh(copied_run, growing=False)
    shutil.copy(copied_run.path / FILE, folder.path / FILE)
    assert not is_used(folder)
    assert_same_views(folder)


@pytest.mark.parametrize("key", [None, b"", b"short"])
def test_a_cache_without_its_key_is_not_used(decided: RunFolder, key: bytes | None, tmp_path: Path) -> None:
    folder = copy_of(decided, tmp_path)
    refresh(folder, growing=False)
    path = tmp_path / "cache" / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    if key is not None:
        path.write_bytes(key)
    assert not is_used(folder)
    assert_same_views(folder)


def test_a_cache_of_other_code_or_other_keys_is_not_used(
    decided: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of(decided, tmp_path)
    refresh(folder, growing=False)
    with monkeypatch.context() as patch:
        patch.setattr(log_cache, "_code_hash", lambda: "other")
        assert not is_used(folder)
    assert is_used(folder)
    keys_file = folder.keys_file()
    assert keys_file is not None
    keys = json.loads(keys_file.read_text())
    keys_file.write_text(json.dumps(keys | {"learner": keys["mesh"]}))
    assert not is_used(folder)
    assert_same_views(folder)


def test_the_command_says_once_why_it_reads_the_whole_log(
    decided: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of(decided, tmp_path)
    read_with_cache(folder, RunSummary(), growing=False)
    (folder.path / FILE).write_bytes(b"damaged")
    read_with_cache(folder, RunSummary(), growing=False)
    read_with_cache(folder, RunSummary(), growing=False)
    warnings = capsys.readouterr().err.splitlines()
    assert [line.partition("because ")[2] for line in warnings] == [
        f"{FILE} was not written in this home, or was changed",
    ]


def test_a_home_that_cannot_be_written_is_read(
    decided: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of(decided, tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(log_cache, "write_atomic", refuse)
    assert_same_views(folder)
    assert not (folder.path / FILE).exists()


def test_a_short_log_has_no_cache(tmp_path: Path) -> None:
    folder = Home(tmp_path).create("short", "bench")
    DecidedRun(folder).write(8)
    assert folder.export.stat().st_size < MIN_BYTES
    assert_same_views(folder)
    assert not (folder.path / FILE).exists()
    assert not (tmp_path / "cache" / KEY_FILE).exists()


def test_metrics_that_are_not_finite_are_restored(decided: RunFolder, tmp_path: Path) -> None:
    folder = copy_of(decided, tmp_path)
    with folder.export.open("w") as out:
        for event in islice(DecidedRun(folder).events(), 500):
            data = event.data.replace(b'"metrics":{', b'"metrics":{"loss/nan":"NaN","loss/inf":"-Infinity",')
            if isinstance(event.body, RunStarted):
                data = event.body.model_copy(update={"keys": {}}).wire()
            out.write(replace(event, data=data, signature="").line() + "\n")
    (folder.path / "nats" / "creds" / "keys.json").unlink()  # the run is not signed
    refresh(folder, growing=False)
    assert is_used(folder)
    summary = RunSummary()
    read_with_cache(folder, summary, growing=False)
    assert math.isnan(summary.metrics["loss/nan"]) and summary.metrics["loss/inf"] == -math.inf
    assert_same_views(folder)


def test_keys_after_a_cache_are_those_of_the_log_before_it(tmp_path: Path) -> None:
    """A person's revoked key stays revoked, and a copy of an old RunStarted does not restore it."""
    folder = Home(tmp_path).create("keys", "bench")
    source = DecidedRun(folder).events()
    signers = {name: Signer(Credentials.load(folder.add_user(name, name))) for name in ("learner", "mesh", "operator")}
    person = Signer(Credentials.load(folder.add_user("operator", "ann")))
    keys = {name: signer.public for name, signer in (*signers.items(), ("ann", person))}
    events: list[Event] = []

    def add(event: Event, body: Any = None, signer: Signer | None = None, subject: str = "") -> Event:
        data = event.data if body is None else body.wire()
        event = replace(
            event, seq=len(events) + 1, data=data, body=body or event.body, subject=subject or event.subject
        )
        if signer is not None:
            event = replace(event, signature=signer.sign(event.subject, event.message_id, data))
        events.append(event)
        return event

    start = next(source)
    assert isinstance(start.body, RunStarted)
    old_start = add(start, start.body.model_copy(update={"keys": keys}), signers["learner"])
    new_body = start.body.model_copy(update={"keys": keys, "incarnation": 2})
    add(start, new_body, signers["learner"])
    base = start.subject.removesuffix(".run")
    revoked = OperatorKey(name="ann", key="")
    add(replace(start, message_id=""), revoked, signers["operator"], f"{base}.operator.operator")
    for event in source:
        add(event)
        if len(events) > 1000:
            break
    size = sum(len(event.line()) + 1 for event in events)
    assert size > MIN_BYTES + TAIL_BYTES
    folder.export.write_text("".join(event.line() + "\n" for event in events))
    refresh(folder, growing=False)
    add(old_start)
    folder.export.write_text("".join(event.line() + "\n" for event in events))
    saved = LogCache(folder, growing=False)
    assert not saved.fault
    for event in saved.log:
        saved.keyring.verify(event)
    plain = Keyring(folder.pin())
    for event in events:
        plain.verify(event)
    assert "ann" not in (plain.keys or {})
    assert saved.keyring.keys == plain.keys
    assert_same_views(folder)


def test_a_log_that_ends_without_a_line_to_skip_is_not_cached(decided: RunFolder, tmp_path: Path) -> None:
    """Later readings could stop skipping at another line, and keep other events."""
    folder = copy_of(decided, tmp_path)
    lines = lines_of(folder)
    event = next(event for event in BriefLog(folder) if isinstance(event.body, Vote))
    votes = [replace(event, seq=len(lines) + number).line().encode() + b"\n" for number in range(1, 50)]
    folder.export.write_bytes(b"".join([*lines, *votes]))
    assert_same_views(folder)
    assert not (folder.path / FILE).exists()


def test_events_are_passed_on_while_a_cache_is_made(decided: RunFolder, tmp_path: Path) -> None:
    folder = copy_of(decided, tmp_path)
    seqs: list[int] = []
    read_with_cache(folder, RunSummary(), growing=False, on_event=lambda event: seqs.append(event.seq))
    assert seqs == [event.seq for event in BriefLog(folder)]


@pytest.fixture(scope="module")
def long_log(home: Home) -> RunFolder:
    """A run with enough events for a cache in a process with the usual limits."""
    folder = home.create("long", "bench")
    DecidedRun(folder).write(12_000)
    return folder


async def test_the_stack_saves_caches_of_a_growing_log_in_another_process(
    long_log: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, was_saved = copy_of(long_log, tmp_path), asyncio.Event()
    refresh_in_process = log_cache.refresh_in_process

    async def refresh_and_tell(folder: RunFolder) -> None:
        await refresh_in_process(folder)
        was_saved.set()

    monkeypatch.setattr(log_cache, "refresh_in_process", refresh_and_tell)
    task = asyncio.create_task(log_cache.save_regularly(folder, 0.0))
    await was_saved.wait()
    await end(task)
    assert is_used(folder)
    assert_same_views(folder, growing=True)


async def test_the_process_that_saves_a_cache_ends_with_its_task(
    long_log: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, started = copy_of(long_log, tmp_path), asyncio.Event()
    processes: list[asyncio.subprocess.Process] = []
    start_process = asyncio.create_subprocess_exec

    async def start_and_tell(*command: str, **options: Any) -> asyncio.subprocess.Process:
        processes.append(await start_process(*command, **options))
        started.set()
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_tell)
    task = asyncio.create_task(log_cache.save_regularly(folder, 0.0))
    await started.wait()
    await end(task)
    assert task.cancelled()
    assert processes[0].returncode is not None
