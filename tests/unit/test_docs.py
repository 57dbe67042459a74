"""The docs hold: tables are fresh, links resolve, commands and settings exist, examples run, messages are real."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import click
import pytest
from tests.support.command_line import inner_commands
from tests.support.mesh_log import LR, Log

from oven_agents.runtime.agent_loader import load
from oven_agents.sdk.agent_session import Session
from oven_bench.benches import SUMMARIES
from oven_controller.cli.main import app, run
from oven_core import plugins
from oven_core.protocol.messages import (
    ActuatorSpec,
    BallotOpened,
    MetricSpec,
    Observation,
    RunStarted,
    Vote,
)
from oven_core.protocol.rules import Rules
from oven_core.removed_names import REMOVED
from oven_kg.checked_graph import load as load_graph
from oven_learner.link.find_controller import Connection
from oven_learner.testing import FakeLink
from oven_runs.home.run_folder import Home
from oven_runs.settings.recipe_flags import flag, with_dashes
from oven_runs.settings.run_settings import Settings, dotted_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = ("controller", "agents", "learner", "kg", "tui", "bench", "tests", "examples", "docs")
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docker").glob("*.md")])


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: str, language: str) -> list[str]:
    code_blocks = re.findall(rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert code_blocks, f"{page} has no {language} block"
    return code_blocks


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("oven_docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_tables_are_fresh(generate: ModuleType) -> None:
    used = set()
    for page in generate.PAGES:
        text = (DOCS / page).read_text()
        used |= {match[2] for match in generate.BLOCK.finditer(text)}
        assert generate.renewed(text) == text, f"docs/{page} is stale: run `python docs/generate.py`"
    assert used == set(generate.GENERATORS)
    for name, text in generate.documents().items():
        assert (DOCS / name).read_text() == text, f"docs/{name} is stale: run `python docs/generate.py`"


def test_every_example_of_a_finding_has_a_section_and_the_healthy_example_has_no_finding(generate: ModuleType) -> None:
    kinds = [run.kind for run in generate.example_runs.RUNS]
    page = (DOCS / "what-is-wrong.md").read_text()
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == kinds
    assert "Nothing needs action" in generate.review_healthy() and "note:" not in generate.review_healthy()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{named(page)} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{named(page)} links to {target}, which has no such heading"


def test_every_page_is_in_the_index() -> None:
    linked = re.findall(r"\]\(([^)#]+)\)", (DOCS / "index.md").read_text() + (DOCS / "adr" / "README.md").read_text())
    reached = {Path(target).name for target in linked}
    assert {page.name for page in DOCS.rglob("*.md")} - {"index.md"} <= reached


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command line in the docs, with the page that it stands on."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        written = re.findall(r"`(oven-controller [^`]+)`", text) + re.findall(
            r"^(?:[ \t]+|(?:srun|ssh) .* )?(oven-controller .+?)(?: &)?$", text, re.M
        )
        for line in written:
            yield named(page), shlex.split(line, comments=True)[1:]


def test_creds_add_prints_what_the_protocol_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVEN_HOME", str(tmp_path))
    folder = Home().create("r", "toy")
    folder.add_user("learner", "learner")
    with pytest.raises(SystemExit):
        run(["creds", "add", "scout"])
    printed = re.findall(r"^export (\w+)=", capsys.readouterr().out, re.MULTILINE)
    page = (DOCS / "protocol.md").read_text()
    assert set(printed) == set(re.findall(r"^\| `(OVEN_\w+)` \|", page, re.MULTILINE))
    assert len(printed) == 5 and "prints five exports" in (DOCS / "agents.md").read_text()


def recipe_options() -> set[str]:
    """The settings of all recipes, as options of `up`."""
    fields = {
        name
        for recipe in plugins.find_plugins("recipes").values()
        for name in recipe.load().settings_model.model_fields
    }
    return {option for name in fields for option in (flag(name), flag(f"no_{name}"))}


def test_commands_and_their_options_exist() -> None:
    seen = 0
    for page, words in commands():
        line = " ".join(words)
        command: click.Command = app
        while words and not words[0].startswith("-") and (inner := inner_commands(command)):
            assert words[0] in inner, f"{page}: oven-controller {line}"
            command = inner[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        if command.name == "up":
            options |= recipe_options()
            words = with_dashes(words)
        own = words[: words.index("--")] if "--" in words else words
        if command.name not in ("bench", "gym"):
            for word in own:
                assert not word.startswith("-") or word in options, f"{page}: {word} in oven-controller {line}"
        seen += 1
    assert seen > 40


def test_source_files_modules_and_benches_named_in_the_docs_exist() -> None:
    tree = [path.as_posix() for folder in SOURCES for path in (ROOT / folder).rglob("*.*")]
    checked = 0
    for page in (page for page in PAGES if page.name not in ("experiments.md", "from-the-source.md", "CHANGELOG.md")):
        text = page.read_text()
        for path in re.findall(r"[`(]((?:[\w-]+/)+[\w-]+\.(?:py|mjs|pyi))\b", text):
            assert any(file.endswith("/" + path) for file in tree), f"{named(page)} names {path}"
            checked += 1
        for dotted in re.findall(r"`(oven_(?:\w+\.)+\w+)`", text):
            package = dotted.rpartition(".")[0]
            assert any(
                f"/{name.replace('.', '/')}{end}" in file
                for file in tree
                for name, end in (
                    (dotted, "/__init__.py"),
                    (dotted, ".py"),
                    (package, "/__init__.py"),
                    (package, ".py"),
                )
            ), f"{named(page)} names {dotted}"
            checked += 1
        for paragraph in text.split("\n\n"):
            removed = "†" in paragraph or "evidence-1" in paragraph
            for bench in re.findall(r"`(?:oven-controller )?bench ([a-z][a-z-]*)", paragraph):
                assert removed or bench in SUMMARIES or bench in ("nosuch",), f"{named(page)} names bench {bench}"
                checked += 1
    assert checked > 60


def test_settings_named_in_the_docs_exist() -> None:
    known, seen = set(dotted_names(Settings)) | REMOVED["setting"], 0
    for page in PAGES:
        text = page.read_text().split("<!-- tested: bad input -->")[0]
        for name in re.findall(r"--set ([a-z_.]+)=", text) + re.findall(r"`(rules\.[a-z_]+_[a-z_]+)`", text):
            assert name in known or name.startswith(("rules.autonomy_of.", "agent_options.", "recipe_options.")), (
                f"{named(page)}: {name}"
            )
            seen += 1
    assert seen > 20


def bad_input() -> list[tuple[str, str]]:
    text = (DOCS / "operating.md").read_text()
    match = re.search(r"<!-- tested: bad input -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert match is not None
    return re.findall(r"^\| `oven-controller ([^|]+)` \| (.+) \|$", match[1], re.MULTILINE)


@pytest.mark.parametrize(("typed", "message"), bad_input())
def test_bad_input_says_what_the_docs_say(
    typed: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("OVEN_HOME", str(home))
    Home().create("taken", "grpo")
    with pytest.raises(SystemExit) as ended:
        run(shlex.split(typed))
    assert ended.value.code == 2
    before, rest, after = message.partition("…")
    error = capsys.readouterr().err.strip().removeprefix("error: ").replace(str(home), "…")
    assert error == message or (bool(rest) and error.startswith(before) and error.endswith(after))
    assert [folder.run for folder in Home().runs()] == ["taken"]


@pytest.fixture
def norm_jump(tmp_path: Path) -> Session:
    source = blocks("agents.md", "python")[0]
    assert len(source.splitlines()) <= 40
    path = tmp_path / "norm_jump.py"
    path.write_text(source)
    name, agent = load(str(path))
    return Session(agent, name)


KNOB = ActuatorSpec(name=LR, kind="scalar", scale="log", low=0.1, high=3, value=1.0)


def feed(session: Session, norms: list[float]) -> list[Vote]:
    session.absorb(
        RunStarted(incarnation=1, n=0, recipe="made up", actuators=(KNOB,), metrics=(MetricSpec(name="grad_norm"),))
    )
    votes: list[Vote] = []
    for tick, norm in enumerate(norms, 1):
        metrics = {"grad_norm": norm}
        session.absorb(Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0.1, metrics=metrics))
        votes += [message for message in session.react() if isinstance(message, Vote)]
    assert not session.problems
    return votes


def test_the_example_agent_votes_on_a_jump_and_only_then(norm_jump: Session) -> None:
    assert feed(norm_jump, [1.0] * 30) == []


def test_the_example_agent_proposes_half(norm_jump: Session) -> None:
    vote = feed(norm_jump, [1.0] * 20 + [3.0] * 5)[-1]
    assert (vote.stance, vote.actuator, vote.value, vote.confidence) == ("propose", LR, 0.5, 0.6)
    assert "3.00 times" in vote.rationale


def test_the_example_agent_is_against_a_rise(norm_jump: Session) -> None:
    feed(norm_jump, [1.0] * 20 + [3.0] * 5)
    rise = BallotOpened(
        id="b", actuator=LR, proposal=2.0, opened_by="other", tick=26, closes_at_tick=29, eligible=("norm_jump",)
    )
    norm_jump.absorb(rise)
    answers = [message for message in norm_jump.react() if isinstance(message, Vote)]
    assert [(vote.stance, vote.ballot) for vote in answers] == [("against", "b")]


def test_the_session_example_prints_a_vote(capsys: pytest.CaptureFixture[str]) -> None:
    agent, alerts, options, session, *_ = blocks("agents.md", "python")
    exec(compile(agent + session, "agents.md", "exec"), {"__name__": "docs"})
    for part in (alerts, options):
        exec(compile("from __future__ import annotations\n" + part, "agents.md", "exec"), {"__name__": "docs"})
    assert "stance='propose'" in capsys.readouterr().out


def test_the_loop_example_applies_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    link = FakeLink({30: (LR, 0.5)})
    there = SimpleNamespace(
        run="docs", link=lambda: link, rules=Rules(), lockstep=False, keys={}, shown_completions=None
    )
    monkeypatch.setattr(Connection, "find", lambda *_: there)
    source = next(block for block in blocks("plugging-in.md", "python") if "oven.connect" in block)
    exec(compile(source, "plugging-in.md", "exec"), {"__name__": "docs"})
    assert [(receipt.status, receipt.before, receipt.after) for receipt in link.receipts()] == [("applied", 1.0, 0.5)]


def test_the_example_of_a_test_passes() -> None:
    source = next(block for block in blocks("plugging-in.md", "python") if "FakeLink" in block)
    exec(compile(source, "plugging-in.md", "exec"), {"__name__": "docs"})


def test_the_readmes_agent_votes(tmp_path: Path) -> None:
    path = tmp_path / "clip.py"
    path.write_text(next(block for block in blocks("../README.md", "python") if "class Clip" in block))
    session = Session(load(str(path))[1], "clip")
    clip = ActuatorSpec(name="grad.clip", kind="scalar", scale="log", low=0.1, high=3, value=1.0)
    norm = MetricSpec(name="grad_norm")
    session.absorb(RunStarted(incarnation=1, n=0, recipe="r", metrics=(norm,), actuators=(clip,)))
    votes = []
    for tick in range(1, 21):
        metrics = {"grad_norm": 2.5}
        session.absorb(Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0, metrics=metrics))
        votes += [message for message in session.react() if isinstance(message, Vote)]
    assert not session.problems and [vote.value for vote in votes] == [1.5]


@pytest.mark.parametrize("page", ["agents.md", "plugging-in.md", "protocol.md", "../README.md"])
def test_python_in_the_docs_is_python(page: str) -> None:
    for source in blocks(page, "python"):
        compile(source, page, "exec")


def test_the_page_about_knowledge_has_the_graphs_size() -> None:
    graph = load_graph().info()
    size = f"{sum(graph.nodes.values())} nodes and {sum(graph.edges.values())} edges"
    assert size in (DOCS / "knowledge.md").read_text()


def quotes(page: str) -> list[str]:
    matches = re.findall(r"(?:^> .*\n)+", (DOCS / page).read_text(), re.MULTILINE)
    return [" ".join(line.removeprefix("> ") for line in quote.splitlines()) for quote in matches]


def test_the_reasons_that_are_explained_are_what_the_mesh_writes() -> None:
    whole, end = quotes("deciding.md")
    log = Log.running("learning_rate", "divergence")
    why = whole[whole.index("because ") + len("because ") : whole.index("; divergence 0.55")]
    log.propose("learning_rate", 4.0, confidence=0.9, rationale=why, evidence=("signal:gradients:optim/grad_cosine",))
    log.vote("divergence", "for", confidence=0.55, evidence=("signal:rewards:reward",))
    assert log.last.reason == whole
    log = Log.running("learning_rate", alone=(LR,), max_factor=4.0)
    log.propose("learning_rate", 0.125, confidence=0.95)
    assert log.last.reason.endswith(end.removeprefix("…"))
