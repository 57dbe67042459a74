"""`replay` and `log` on logs as they are found: whole, damaged, another's, and with other rules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.mesh_log import LR, NOON, Log
from tests.support.own_home import invoke
from tests.support.replayed import a_run, left_behind

from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation, RunStarted
from oven_core.protocol.subjects import SIGNERS
from oven_core.removed_names import COMMIT, TAG
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer
from oven_runs.home.run_folder import Home, RunFolder

EARLIER = Path(__file__).parents[2] / "support" / "earlier_code.jsonl"
"""A run's log, and the hash of the code that made it, which its RunStarted has."""
EARLIER_CODE = "bec1801f9b84e5d6a09c5096e2ce2992b8fd9ccc1dc5d183ef968798e06ebffc"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


def test_a_log_that_follows_from_its_inputs_replays_as_the_same(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    log = a_run()
    left_behind(home, log)
    assert invoke("replay", "r") == 0
    assert "3 decisions (1 adopted): the same, byte for byte" in capsys.readouterr().out
    assert invoke("replay", "r", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["same"] is True and report["events"] == len(log.events) and report["finished"] is True
    assert report["signatures"] == {"signed": False, "checked": False, "explain_difference": False, "by_kind": {}}


def test_a_log_that_does_not_follow_from_its_inputs_is_reported(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    folder = left_behind(home, a_run())
    text = folder.export.read_text()
    folder.export.write_text(text.replace('"verdict":"adopted"', '"verdict":"rejected"'))
    assert invoke("replay", "r") == 1
    output = capsys.readouterr().out
    assert "NOT the same" in output and "different: 1, first oven.r.decision." in output
    assert '"verdict":"rejected"' in output and '"verdict":"adopted"' in output


def test_a_log_of_earlier_code_replays_and_says_which_made_it(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Its ballots, decisions and outcome were written before the modules of mesh and protocol had their places."""
    folder = home.create("r", "grpo")
    shutil.copy(EARLIER, folder.export)
    assert invoke("replay", "r", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["same"] and (report["decisions"], report["adopted"], report["equal"]) == (3, 1, 6)
    assert report["mesh_code"] == EARLIER_CODE != mesh_code_hash()
    assert invoke("replay", "r") == 0
    verdict, hint = capsys.readouterr().out.splitlines()[::2]
    assert verdict.endswith("3 decisions (1 adopted): the same, byte for byte")
    assert hint == (
        f"another version of the mesh made these decisions ({EARLIER_CODE[:12]}; this one is {mesh_code_hash()[:12]})"
    )
    folder.export.write_text(folder.export.read_text().replace('"verdict":"adopted"', '"verdict":"rejected"'))
    assert invoke("replay", "r") == 1
    assert f"{hint}; replay it with the version in its RunStarted" in capsys.readouterr().out


def test_until_a_tick_it_says_what_the_mesh_knew(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    left_behind(home, a_run())
    assert invoke("replay", "r", "--until", "3", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["tick"], report["decisions"]) == (3, 0)
    knew = report["mesh_state"]
    assert knew["tick"] == 3 and knew["effective"][LR] == 1.0
    assert [ballot["votes"] for ballot in knew["open_ballots"]] == [{"amy": "propose"}]
    amy = {"live": True, "last_tick": 1, "cannot_fire": "", "reputation": 1.0, "good_outcomes": {}}
    amy["trusted"] = [LR]
    assert knew["agents"]["amy"] == amy
    assert invoke("replay", "r", "--until", "4") == 0
    output = capsys.readouterr().out
    assert "mesh state at tick 4" in output
    assert f"{LR} = 0.5" in output and "1 decisions adopted, 39 interventions left" in output
    assert "agent bob: live, reputation 1" in output


def test_what_other_rules_would_have_decided(home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    left_behind(home, a_run())
    (tmp_path / "strict.yaml").write_text("seed: 3\nrules:\n  quorum_confidence: 0.95\n")
    assert invoke("replay", "r", "--config", "strict.yaml") == 0
    output = capsys.readouterr().out
    assert f"first divergence of 1: tick 4, {LR}" in output
    assert "logged:   adopted 0.5 at tick 4: amy proposed 0.5" in output
    assert "computed: rejected 0.5 at tick 4: amy proposed 0.5" in output and "0.95" in output
    assert f"{LR}: logged 1 adopted, 1 rejected; computed 2 rejected" in output
    assert "1 receipts ignored" in output
    assert invoke("replay", "r", "--config", "strict.yaml", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["first"]["logged"]["verdict"] == "adopted" and report["first"]["computed"]["verdict"] == "rejected"
    assert report["rules"] == {"quorum_confidence": 0.95} and report["same"] is False
    (tmp_path / "same.yaml").write_text("rules: {quorum_confidence: 0.9}")
    assert invoke("replay", "r", "--config", "same.yaml") == 0
    assert "the same decisions" in capsys.readouterr().out


def lines(folder: RunFolder) -> list[bytes]:
    return folder.export.read_bytes().splitlines(keepends=True)


def cut(folder: RunFolder) -> bytes:
    return b"".join(lines(folder))[:-100]


DAMAGE: dict[str, tuple[Callable[[RunFolder], bytes], str]] = {
    "cut": (cut, "the line is truncated"),
    "empty": (lambda _: b"", "log.jsonl is empty"),
    "gap": (lambda f: b"".join(lines(f)[:4] + lines(f)[6:]), "line 5: event 7 follows event 4; 2 events between them"),
    "twice": (lambda f: b"".join(lines(f)[:4] + lines(f)[3:]), "event 4 follows event 4; it is a duplicate"),
    "beheaded": (lambda f: b"".join(lines(f)[1:]), "line 1: event 2 follows event 0; 1 events between them"),
    "garbage": (lambda _: bytes(range(128, 256)), "line 1: 'utf-8' codec can't decode byte 0x80"),
    "foreign": (lambda _: b'{"level": "info"}\n', "line 1: not a line of an exported log"),
    "a field": (lambda f: lines(f)[0].replace(b'"seq"', b'"sequel"'), "line 1: 'seq' is missing"),
    "another run": (
        lambda f: b"".join(lines(f)).replace(b"oven.r.", b"oven.q."),
        "line 1: the event's subject is oven.q.run, so this is not the log of run 'r'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", ["replay", "log"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_log_is_named_with_its_line_and_what_is_left(
    damage: str, command: str, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = left_behind(home, a_run())
    spoil, words = DAMAGE[damage]
    folder.export.write_bytes(spoil(folder))
    assert invoke(command, "r") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {folder.export}") and error.count("\n") == 1
    assert words in error and "restore it from a backup" in error
    (folder.server.folder / "store").mkdir(parents=True)
    assert invoke(command, "r") == 2
    assert "move the file away to read the log from the store instead" in capsys.readouterr().err


def test_a_cut_log_is_read_up_to_a_tick_that_is_whole(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    folder = left_behind(home, a_run())
    folder.export.write_bytes(cut(folder))
    assert invoke("replay", "r") == 2
    assert (
        f"the {len(lines(folder)) - 1} lines before it are intact, up to tick 9: `--until 8`" in capsys.readouterr().err
    )
    assert invoke("replay", "r", "--until", "8") == 0
    assert "up to tick 8" in capsys.readouterr().out


@pytest.mark.parametrize("ask", [(), ("--config", "rules.yaml")])
def test_a_log_of_another_schema_version_is_refused(
    ask: tuple[str, ...], home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text("rules: {window_ticks: 4}")
    folder = left_behind(home, a_run())
    text = folder.export.read_text()
    later = [line.replace('"v":1', '"v":2') for line in text.splitlines(keepends=True)]
    folder.export.write_text("".join(later))
    assert invoke("replay", "r", *ask) == 2
    error = capsys.readouterr().err
    assert "event 1 on oven.r.run has schema version 2, but this program reads version 1" in error


def with_trials(text: str) -> str:
    """The log of a run whose rules and learner allowed trials."""
    return text.replace('"rules":{', '"trials":"eval/loss","rules":{"trials":"risky",', 1)


def with_a_trial(text: str) -> str:
    """The log with an event about a trial at its end."""
    last = json.loads(text.splitlines()[-1])
    trial = Event.read(last["seq"] + 1, "oven.r.trial.x", b'{"v":1,"type":"TrialStarted","id":"x"}', NOON)
    return text + trial.line() + "\n"


@pytest.mark.parametrize("change", [with_trials, with_a_trial])
@pytest.mark.parametrize("command", [["replay", "r"], ["decisions", "r"], ["log", "r"]])
def test_a_log_with_trials_is_refused_with_one_sentence_that_names_the_tag(
    home: Home, capsys: pytest.CaptureFixture[str], change: Callable[[str], str], command: list[str]
) -> None:
    folder = left_behind(home, a_run())
    folder.export.write_text(change(folder.export.read_text()))
    assert invoke(*command) == 2
    sentence = f"this log has trials, which were removed; check out the tag {TAG} (commit {COMMIT[:12]}) to replay it"
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith(sentence)


def test_a_log_that_is_refused_is_not_printed_in_part(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(stride=1)
    log.join("amy")
    log.start()
    folder = left_behind(home, log)
    folder.export.write_text(with_trials(folder.export.read_text()))
    assert (invoke("log", "r"), capsys.readouterr().out) == (2, "")


def test_rules_for_trials_without_a_learner_that_makes_any_replay(home: Home) -> None:
    folder = left_behind(home, a_run())
    folder.export.write_text(folder.export.read_text().replace('"rules":{', '"rules":{"trials":"risky",', 1))
    assert invoke("replay", "r") == 0


def test_an_agents_vote_of_another_version_spoils_nothing(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(stride=1)
    log.start()
    log.put("vote.amy", b'{"v":2,"type":"Vote"}')
    log.tick(2)
    left_behind(home, log)
    assert invoke("replay", "r") == 0


def test_a_run_that_never_started_is_reported(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(stride=1)
    log.join("amy")
    left_behind(home, log)
    assert invoke("replay", "r") == 2
    assert "run 'r' has no RunStarted" in capsys.readouterr().err


def test_two_readers_of_one_store(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home.create("r", "grpo")
    (folder.server.folder / "store").mkdir(parents=True)
    with folder.hold(reading=True):
        assert not folder.is_locked() and folder.status() == "interrupted", "who reads is no stack"
        assert invoke("replay", "r") == 2
    error = capsys.readouterr().err
    assert "the store of run 'r' is being read by another command" in error and "try again when it has ended" in error
    with folder.hold():
        assert folder.is_locked()


def signed(log: Log, forged: Observation | None = None) -> Log:
    """The same run, every event but the agents' signed by who says it, and where `{}` stands a forgery."""
    signers = {name: Signer(Credentials.new(name)) for name in ("learner", "mesh", "stranger")}
    keys = {name: signers[name].public for name in ("learner", "mesh")}
    for index, entry in enumerate(log.events):
        kind, data, role = entry.subject.split(".")[2], entry.data, "stranger"
        if isinstance(entry.body, RunStarted):
            data = entry.body.model_copy(update={"keys": keys}).wire()
        if data == b"{}" and forged is not None:
            data = forged.wire()
        else:
            role = SIGNERS.get(kind, "")
        signature = signers[role].sign(entry.subject, f"1-{index}", data) if role else ""
        log.events[index] = Event.read(
            entry.seq, entry.subject, data, entry.time, message_id=f"1-{index}", signature=signature
        )
    return log


def test_signatures_are_counted_by_kind(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    left_behind(home, signed(a_run()))
    assert invoke("replay", "r", "--verify", "--json") == 0
    counts = json.loads(capsys.readouterr().out)["signatures"]
    assert counts["signed"] and counts["checked"] and not counts["explain_difference"]
    assert counts["by_kind"]["observation"] == {"signed": 9} and counts["by_kind"]["decision"] == {"signed": 3}
    assert "vote" not in counts["by_kind"]
    assert invoke("replay", "r", "--verify") == 0
    assert "  receipt: 1 signed" in capsys.readouterr().out


def test_a_signature_that_does_not_hold_makes_no_difference_in_the_end(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """The live mesh refused it, so the decisions went on without it; that it is there does not make it count."""
    log = Log(stride=1)
    log.start(alone={"amy": (LR,)})
    log.join("amy")
    log.join("bob")
    log.tick()
    log.propose("amy", 0.5, confidence=0.9)
    log.put("observation", b"{}")
    log.tick(3)
    log.end()
    forgery = Observation(incarnation=1, n=700, tick=700, step=1, progress=0, metrics={})
    left_behind(home, signed(log, forgery))
    assert invoke("replay", "r") == 0
    output = capsys.readouterr().out
    assert "the same, byte for byte" in output and "the decisions agree only if" in output
    assert "observation: 4 signed, 1 wrong" in output
    assert invoke("replay", "r", "--verify") == 0
    assert "the decisions agree only if" not in capsys.readouterr().out


ENDING = {
    "import sys\nsys.exit(0)\n": "line 2: importing the agent called sys.exit(0)",
    "raise SystemExit\n": "line 1: importing the agent called sys.exit(None)",
    "from oven_agents import Agent\nclass A(Agent):\n    def __init__(self) -> None:\n        raise SystemExit(0)\n": (
        "A() called sys.exit(0); move code for scripts under `if __name__"
    ),
}


@pytest.mark.parametrize("source", ENDING, ids=["at once", "as an exception", "when it is made"])
def test_an_agent_that_ends_the_process_is_an_error(
    source: str, home: Home, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Exit code 0 and no line would say that it has nothing to vote."""
    left_behind(home, a_run())
    (tmp_path / "mine.py").write_text(source)
    assert invoke("backtest", "mine.py", "r") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: mine.py") and ENDING[source] in captured.err and not captured.out
    command = [
        sys.executable,
        "-m",
        "oven_controller.stack.run_process",
        "agent",
        "mine.py",
    ]  # what `agent run` becomes
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 2 and ENDING[source] in done.stderr


def test_a_run_without_keys_has_no_signatures_to_check(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    left_behind(home, a_run())
    assert invoke("replay", "r", "--verify") == 0
    assert "this run is not signed" in capsys.readouterr().out
