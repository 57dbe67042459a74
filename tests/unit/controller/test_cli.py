"""The command line without a stack: help, exit codes, and what is said."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.command_line import all_commands
from tests.support.own_home import invoke
from tests.support.replayed import a_run, left_behind

from oven_controller.cli.agent import TEMPLATE
from oven_controller.stack import dry_run
from oven_controller.stack.preflight_checks import Request
from oven_core.errors import ConfigError
from oven_runs.home.run_folder import Home
from oven_runs.settings.resolution import resolve


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


def test_every_command_has_help_with_an_example() -> None:
    for words, command in all_commands():
        if not words or words == ("bench",):  # the help of `bench` lists the measurements, which have help of their own
            continue
        assert command.help is not None and f"Example: oven-controller {' '.join(words)}" in command.help, words


def test_a_list_of_commands_imports_none_of_them() -> None:
    code = "import sys; from oven_controller.cli.main import run\ntry: run(['kg', '--help'])\nexcept SystemExit: pass\n"
    code += "print([name for name in sys.modules if name.startswith(('oven_kg', 'oven_controller.cli.kg_'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "diagnose" in done.stdout and done.stdout.splitlines()[-1] == "[]"


def test_without_the_source_checkout_there_are_no_benches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("oven_controller.cli.bench.find_spec", lambda _name: None)
    for command in (["bench"], ["bench", "starts", "--json"], ["gym", "--quick"]):
        assert invoke(*command) == 2
        assert "in a source checkout" in capsys.readouterr().err


def test_ctrl_c_during_the_imports_is_silent() -> None:
    code = (
        "import signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'click': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt)\n"
        "from oven_controller.cli.console_script import run\n"
        "run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_removed_command_names_the_tag(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("kg", "learn") == 2
    assert "was removed" in capsys.readouterr().err
    assert invoke("statsu") == 2
    assert "did you mean 'status'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["log", "nobody"], "no run named 'nobody'; there is no run yet"),
        (["status"], "there are no runs"),
        (["down"], "no run is running"),
        (["agent", "run", "nothere.py"], "there is no agent file nothere.py"),
        (["agent", "run", "learning_rate", "--alone"], "--alone without --trust has no effect"),
        (["agent", "new", "a b"], "not a usable name"),
        (["agent", "run", "learning_rate", "--name", "lr\n"], "is not a usable name"),
        (["up", "--no-learner", "--run", "é"], "run 'é' is not a usable name"),
        (
            [
                "up",
                "--no-learner",
                "--set",
                "agents=[]",
                "--set",
                "committee={members: {a.b: {provider: openai, model: m}}}",
            ],
            "committee member 'a.b' is not a usable name",
        ),
        (["run", "--set", "agents=[]", "--", "nothere"], "'nothere' is not a program"),
        (["bench", "nothere"], "no bench named 'nothere'"),
        (["up", "--recipe", "nothere"], "no recipe named 'nothere'"),
        (["up", "--set", "seed"], "KEY=VALUE, e.g. --set rules.window_ticks=5"),
        (
            ["up", "--no-learner", "--set", "agents=[]", "--creds", "nothere.nk", "--nats", "nats://127.0.0.1:1"],
            "cannot read the credentials",
        ),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str], home: Home
) -> None:
    assert invoke(*args) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert words in error
    assert home.runs() == []


def test_a_new_agent_is_small_compiles_and_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("agent", "new", "loss-watch") == 0
    source = (tmp_path / "loss_watch.py").read_text()
    compile(source, "loss_watch.py", "exec")
    assert "class LossWatch(Agent)" in source
    assert len(source.splitlines()) <= 40
    assert invoke("agent", "new", "loss-watch") == 2
    assert "loss_watch.py already exists" in capsys.readouterr().err


def test_dry_run_starts_nothing(capsys: pytest.CaptureFixture[str], home: Home) -> None:
    assert invoke("run", "--dry-run", "--set", "agents=[]", "--", "python", "train.py") == 0
    output = capsys.readouterr().out
    assert "autonomy: observe" in output
    assert "script            python train.py" in output
    assert not home.path.exists()


@pytest.mark.parametrize("dry", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("recipe", "command", "remedy"),
    [
        (
            "attached",
            ["run", "--resume", "--run", "r", "--set", "agents=[]", "--", "true"],
            "oven-controller run -- COMM",
        ),
        ("grpo", ["up", "--resume", "--run", "r", "--set", "agents=[]"], "oven-controller up --recipe grpo`"),
    ],
)
def test_a_completed_run_is_not_resumed_and_any_other_is(
    capsys: pytest.CaptureFixture[str], home: Home, recipe: str, command: list[str], remedy: str, dry: list[str]
) -> None:
    folder = home.create("r", recipe)
    folder.config.write_text(json.dumps({"recipe": recipe}))
    folder.write_info(replace(folder.info(), ended="completed"))
    assert invoke(command[0], *dry, *command[1:]) == 2
    error = capsys.readouterr().err
    assert "run 'r' is completed" in error and remedy in error
    for ended in ("stopped", "failed", None):
        folder.write_info(replace(folder.info(), ended=ended))
        if dry:
            assert invoke(command[0], *dry, *command[1:]) == 0


def test_a_stack_without_a_learner_serves_a_completed_run(home: Home) -> None:
    folder = home.create("r", "attached")
    folder.config.write_text(json.dumps({"recipe": "attached"}))
    folder.write_info(replace(folder.info(), ended="completed"))
    assert invoke("up", "--dry-run", "--no-learner", "--resume", "--run", "r", "--set", "agents=[]") == 0


def test_dry_run_shows_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"kg", "monitor"}
    monkeypatch.setattr("oven_controller.stack.dry_run.is_installed", lambda name: name in there)
    committee = "committee={members: {judge: {provider: compatible, model: m, base_url: 'http://127.0.0.1:1'}}}"
    traces = {"otlp": "http://127.0.0.1:4318"}
    request = Request(resolve(sets=("agents=[]", committee), flags=traces, attached=True))
    text = "\n".join(dry_run.output_lines(request, Home()))
    own = "python -m oven_controller.stack.run_process"
    for line in (
        f"kg                {own} kg", f"member-judge      {own} member --name judge",
        f"monitor           {own} monitor", "otlp: http://127.0.0.1:4318",
    ):  # fmt: skip
        assert line in text
    (tmp_path / "graph.json").touch()
    large = Request(resolve(sets=("agents=[]", f"kg={tmp_path}"), attached=True))
    assert f"kg                {own} kg --large {tmp_path}\n" in "\n".join(dry_run.output_lines(large, Home()))
    (tmp_path / "graph.json").unlink()
    with pytest.raises(ConfigError, match=r"is not a graph folder .* create one with `oven-controller kg import"):
        dry_run.output_lines(large, Home())
    there.clear()
    text = "\n".join(dry_run.output_lines(request, Home()))
    assert "kg                not started: it is not installed" in text
    assert "monitor           not started: it is not installed" in text
    assert "monitor " not in "\n".join(dry_run.output_lines(dataclasses.replace(request, starts_learner=False), Home()))


REFUSED: dict[str, tuple[list[str], int, str]] = {
    "a name": (["--run", "a b"], 2, "run 'a b' is not a usable name"),
    "an option as a name": (
        ["--run", "-x"],
        2,
        "run '-x' is not a usable name: use 1 to 64 of A–Z a–z 0–9 _ -, not starting with -",
    ),
    "a path as a name": (["--run", "../x"], 2, "run '../x' is not a usable name"),
    "a name that is taken": (["--run", "there"], 2, "there is a run named 'there' in"),
    "23 digits": (["--set", "steps=12345678901234567890123"], 2, "it should be less than or equal to 1000000000"),
    "no address": (["--nats", "nats://"], 2, "'nats://' is not a server's address"),
    "no server": (["--nats", "nats://127.0.0.1:1"], 3, "no NATS server answers at nats://127.0.0.1:1"),
    "no key": (["--nats", "nats://127.0.0.1:1", "--creds", "nothere.nk"], 2, "nothere.nk: No such file"),
    "no key of one": (["--nats", "nats://127.0.0.1:1", "--creds", "keys"], 2, "keys/admin.nk: No such file"),
    "no authority": (["--nats", "tls://127.0.0.1:1", "--tls-ca", "nothere.pem"], 2, "nothere.pem: No such file"),
}


@pytest.mark.parametrize("dry", [["--dry-run"], []], ids=["dry", "up"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_dry_run_refuses_what_up_refuses(
    case: str, dry: list[str], capsys: pytest.CaptureFixture[str], home: Home, tmp_path: Path
) -> None:
    home.create("there", "grpo")
    (tmp_path / "keys").mkdir()
    args, code, words = REFUSED[case]
    assert invoke("up", "--no-learner", "--set", "agents=[]", "--set", "kg=false", *dry, *args) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and words in captured.err and captured.err.count("\n") == 1
    if dry:
        assert captured.out == "" and [folder.run for folder in home.runs()] == ["there"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def\n", "line 1: importing the agent raised SyntaxError"),
        ("1 / 0\n", "line 1: importing the agent raised ZeroDivisionError"),
        ("print('hello')\n", "must define exactly one subclass of oven_agents.Agent; it defines none"),
        ("raise SystemExit(0)\n", "line 1: importing the agent called sys.exit(0)"),
    ],
)
def test_a_dry_run_loads_the_agents_files(
    source: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "mine.py").write_text(source)
    assert invoke("up", "--dry-run", "--no-learner", "--set", "agents=mine.py") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {tmp_path / 'mine.py'}") and words in captured.err and captured.out == ""
    (tmp_path / "mine.py").write_text(TEMPLATE.format(class_name="Mine"))
    assert invoke("up", "--dry-run", "--no-learner", "--set", "agents=mine.py") == 0
    assert "agent-mine" in capsys.readouterr().out


def test_a_port_in_use_is_an_error(capsys: pytest.CaptureFixture[str], home: Home) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        assert invoke("up", "--headless", "--no-learner", "--set", "agents=[]", "--port", port) == 2
    assert f"port {port} on 127.0.0.1 is in use; choose another with --port" in capsys.readouterr().err
    assert home.runs() == []


@pytest.mark.parametrize(
    ("command", "heavy"),
    [
        ("--help", ("oven_controller.cli.options", "pydantic", "asyncio", "importlib.metadata")),
        ("runs", ("oven_runs.access.run_access", "pydantic", "asyncio", "ssl", "nacl")),
        ("decisions", ("oven_core.bus", "oven_core.mesh", "oven_core.protocol.graph_requests", "nats", "psutil")),
        ("status", ("oven_core.bus", "oven_core.mesh", "oven_core.protocol.graph_requests", "nats", "psutil")),
    ],
)
def test_a_command_imports_only_what_it_needs(command: str, heavy: tuple[str, ...], home: Home) -> None:
    log = a_run()
    left_behind(home, log)
    code = f"import sys; from oven_controller.cli.main import run\ntry: run([{command!r}])\nexcept SystemExit: pass\n"
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_path())
    assert done.stdout.splitlines()[-1] == "[]" and len(done.stdout.splitlines()) > 2 and not done.stderr


@pytest.mark.parametrize(
    ("missing", "command"),
    [("numpy", ["oracle", "ask", "a text"]), ("transformers", ["traces", "collect", "instances.jsonl"])],
)
def test_a_missing_package_is_one_line_that_says_what_to_install(missing: str, command: list[str], home: Home) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom oven_controller.cli.main import run\nrun({command})\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_path())
    expected = f"error: this command needs the package '{missing}', which is not installed; run "
    assert (done.returncode, done.stderr) == (2, expected + '`pip install "oven-controller[all]"`\n')


def test_help_fits_100_columns_and_describes_every_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for words, command in all_commands():
        described = [getattr(parameter, "help", None) for parameter in command.params]
        assert all(described) or words in {("kg", "curriculum")}, words  # the name of its argument says all
        assert invoke(*words, "--help") == 0
        page = capsys.readouterr().out
        if words[:1] not in (("bench",), ("gym",)):
            assert page.startswith("Usage: oven-controller") and max(map(len, page.splitlines())) <= 100, words


def test_ctrl_c_during_a_command_is_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("oven_controller.cli.runs.listed_runs", interrupt)
    assert invoke("runs") == 130
    assert capsys.readouterr() == ("", "")


def _path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
