"""The server is away when training ends: nothing that the learner said is lost, and what is missing is said."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys

import psutil
import pytest
from tests.integration.conftest import WAIT_S, Stack, family, wait_for
from tests.integration.controller.test_stack_restarts import SERVICES, OutputReader, the_server_itself

from oven_core.protocol.events import Event
from oven_core.protocol.messages import LearnerMessage, Observation, RunEnded
from oven_runs.access.log_sources import exported_events
from oven_runs.home.learner_spool import NAME, read_spool
from oven_runs.home.run_folder import RunFolder

pytestmark = pytest.mark.e2e


def training(stack: Stack, run: str) -> OutputReader:
    """25 observations a second, with two agents, decisions and receipts."""
    stack.install(SERVICES)
    up = OutputReader(
        stack.start("up", "--headless", "--recipe", "toy", "--run", run, "--set", "agents=[learning_rate]")
    )
    up.until("step   10")
    return up


def down(stack: Stack, run: str) -> None:
    """The server is killed, and does not come back: its configuration cannot be read."""
    folder = stack.run_folder(run)
    folder.server.conf.write_text("port: nonsense")
    the_server_itself(stack, run).kill()


def ended(stack: Stack, run: str, up: OutputReader) -> str:
    """Training goes on for a while without it, and ends."""
    up.until("nats-server ended")
    up.until("nats-server ended")  # it is tried again in vain
    (stack.run_folder(run).path / "finish").touch()
    code = up.end()
    assert code == 3, "".join(up.lines)
    return "".join(up.lines)


def whole(events: list[Event]) -> int:
    """Nothing of the learner is missing or there twice, in order; how many observations."""
    numbers = [event.body.n for event in events if isinstance(event.body, LearnerMessage)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    [end] = [event.body for event in events if isinstance(event.body, RunEnded)]
    assert end.reason == "completed" and end.dropped_observations == 0
    observed = sum(isinstance(event.body, Observation) for event in events)
    assert observed == end.tick
    return observed


def test_after_a_lasting_outage_the_spool_goes_into_the_log_when_it_is_read(stack: Stack) -> None:
    up = training(stack, "never")
    down(stack, "never")
    text = ended(stack, "never", up)
    folder = stack.run_folder("never")
    content = read_spool(folder.path, "never")
    assert content.messages and content.run_end is not None and not content.lost
    assert (
        f"the log lacks {len(content.messages)} messages of the learner ({content.observation_count} observations"
        in text
    )
    code, output = stack.command("log", "never", "--json")
    assert code == 0 and f"spool.jsonl: {len(content.messages)} messages" in output
    assert not (folder.path / NAME).exists()
    assert whole(list(exported_events(folder))) > content.observation_count
    assert stack.command("replay", "never")[0] == 0


def test_a_bus_that_returns_during_shutdown_gets_all_messages(stack: Stack) -> None:
    up = training(stack, "back")
    conf = stack.run_folder("back").server.conf
    before = conf.read_text()
    down(stack, "back")
    up.until("nats-server ended")  # and is tried again 3.75 s and 7.75 s from here: the learner gives it up between
    (stack.run_folder("back").path / "finish").touch()
    spool = stack.run_folder("back").path / NAME
    # `look` would wait for the stack, which has the file to itself until the server is back.
    wait_for(lambda: spool.exists() and "RunEnded" in spool.read_text(), "what the learner kept")
    conf.write_text(before)
    code = up.end()
    text = "".join(up.lines)
    assert code == 0 and "are in the log now" in text and "completed at step" in text, text
    whole(list(exported_events(stack.run_folder("back"))))
    assert stack.run_folder("back").status() == "completed"
    assert stack.command("replay", "back")[0] == 0


@pytest.mark.slow
def test_without_the_store_log_jsonl_has_the_whole_log(stack: Stack) -> None:
    up = training(stack, "gone")
    folder = stack.run_folder("gone")
    shutil.rmtree(folder.server.folder / "store")
    up.until("the store of the log was removed")
    down(stack, "gone")
    ended(stack, "gone", up)
    content = read_spool(folder.path, "gone")
    assert content.messages
    code, output = stack.command("log", "gone")
    assert code == 0 and "the store of run 'gone' is gone: its log is log.jsonl" in output, output
    whole(list(exported_events(folder)))
    code, output = stack.command("replay", "gone")
    assert code == 0 and "is gone" in output and "byte for byte" in output, output
    assert stack.json("status", "gone")["status"] == "completed"


LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
os.execv(sys.executable, [sys.executable, "-m", "oven_controller.cli.main", *sys.argv[2:]])
"""


@pytest.mark.slow
def test_with_a_full_disk_the_number_of_missing_messages_is_reported(stack: Stack) -> None:
    """By a limit on a file's size, as a quota or a full disk would have it: for the store, log.jsonl and the spool."""
    stack.install(SERVICES)
    args = ["up", "--headless", "--recipe", "toy", "--run", "full", "--set", "agents=[learning_rate]"]
    up = OutputReader(limited(stack, 30000, *args))
    folder = stack.run_folder("full")
    up.until("cannot write log.jsonl (File too large)")
    learner = folder.logs / "learner.log"
    wait_for(lambda: "messages waiting" in learner.read_text(), "the outage, in the learner's own log")
    (folder.path / "finish").touch()
    code, text = up.end(), "".join(up.lines)
    assert code == 3 and "Traceback" not in text, text
    content = read_spool(folder.path, "full")
    assert content.messages and content.run_end is not None, "the end goes before the last observations"
    assert f"the log lacks {content.summary()}; see {folder.path / NAME}" in text

    code, output = stack.command("log", "full", "--json")
    events = [Event.from_line(line) for line in output.splitlines() if line.startswith("{")]
    numbers = [event.body.n for event in events if isinstance(event.body, LearnerMessage)]
    [end] = [event.body for event in events if isinstance(event.body, RunEnded)]
    assert numbers == sorted(set(numbers)) and len(numbers) + content.lost == end.n
    assert (code, "permanently lost: the spool was truncated" in output) == (
        3 if content.lost else 0,
        bool(content.lost),
    )
    code, output = stack.command("replay", "full", "--verify")
    assert code == (1 if content.lost else 0) and "byte for byte" in output, output
    assert (f"missing: {content.lost} messages of the learner" in output) == bool(content.lost)
    status = stack.json("status", "full")
    assert status["status"] == "completed" and bool(status["missing"]) == bool(content.lost)


def killed(stack: Stack, run: str) -> RunFolder:
    """What `kill -9` of a stack leaves behind: a log.jsonl that grew beside the store."""
    up = stack.up(run, "--set", "recipe_options.mode=wait", until="step   12/12")
    folder = stack.run_folder(run)
    wait_for(lambda: '"tick":12,' in folder.export.read_text(), "the last observation in log.jsonl")
    processes = family(up.pid)
    up.kill()
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []
    return folder


def limited(stack: Stack, size: int, *args: str) -> subprocess.Popen[str]:
    """A command that may write no file beyond so many bytes."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIMITED, str(size), *args], env=stack.env, cwd=stack.folder, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    stack.started.append(process)
    return process


def test_an_unwritable_file_is_reported_in_one_line(stack: Stack) -> None:
    code, output = stack.end_of(limited(stack, 300, "up", "--headless", "--recipe", "toy", "--run", "early"))
    assert code == 3 and "Traceback" not in output
    assert "(File too large); free some disk space" in output

    up = OutputReader(
        stack.start("up", "--headless", "--recipe", "toy", "--run", "late", "--set", "recipe_options.mode=wait")
    )
    up.until("step   12/12")
    psutil.Process(up.process.pid).rlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    assert stack.command("down", "late")[0] == 0
    code, output = up.end(), "".join(up.lines)
    assert code == 3 and "Traceback" not in output, output
    assert "cannot write the run's end to run.json (File too large)" in output
    folder = stack.run_folder("late")
    folder.export.unlink()
    code, output = stack.end_of(limited(stack, 300, "replay", "late"))
    assert code == 3 and "Traceback" not in output and output.count("\n") == 1, output
    assert "File too large" in output and "free some disk space" in output
    assert stack.command("replay", "late", "--verify")[0] == 0, "nothing was lost"
    assert stack.json("status", "late")["status"] == "interrupted"
