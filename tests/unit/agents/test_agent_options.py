"""Options of agents: which there are, how they reach the agent, and what is refused."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oven_agents
from oven_agents.runtime import agent_host
from oven_agents.runtime.agent_loader import load
from oven_agents.shipped.divergence import Divergence
from oven_agents.shipped.learning_rate import LearningRate
from oven_agents.shipped.reward_weights import RewardWeights
from oven_controller.stack.process_plan import Plan, make_pools
from oven_core.errors import ConfigError, UnknownNameError
from oven_runs.home.run_folder import Home
from oven_runs.settings.agent_options import checked_options, option_arguments, options_of
from oven_runs.settings.agents import AgentSpec, agent_specs
from oven_runs.settings.resolution import resolve

FILE = '''
from oven_agents import Agent

class Scout(Agent):
    """One of a user's own."""

    moves = ("optimizer.lr_scale",)
    options = {"share": (0.0, 1.0)}
    SHARE = 0.25
    """Share of it that is enough, 0 to 1. The rest is explanation."""
    LOW: float = -2.0
    """Where it ends."""
    BARE = 3
    FIXED = 5
    """What it sets by itself."""
    ON = True
    """No number."""

    def __init__(self) -> None:
        self.FIXED = 5
        self.seen_when_made = self.SHARE
'''


@pytest.fixture
def scout(tmp_path: Path) -> str:
    path = tmp_path / "scout.py"
    path.write_text(FILE)
    return str(path)


def test_options_are_numeric_attributes_with_a_docstring(scout: str) -> None:
    options = options_of(LearningRate)
    assert (options["cut"].default, options["cut"].meaning) == (8.0, "Divisor of the rate after a collapse")
    assert "early" not in options, "a range is no number"
    _, agent = load(scout)
    assert [(o.name, o.default, o.meaning, o.minimum, o.maximum) for o in options_of(type(agent)).values()] == [
        ("share", 0.25, "Share of it that is enough, 0 to 1", 0.0, 1.0),
        ("low", -2.0, "Where it ends", -math.inf, math.inf),
        ("fixed", 5, "What it sets by itself", -math.inf, math.inf),
    ]


def test_an_option_is_there_before_the_agent_is_made(scout: str) -> None:
    name, agent = load(scout, {"share": "0.5", "LOW": -1})
    values: dict[str, Any] = {key: getattr(agent, key) for key in ("SHARE", "LOW", "seen_when_made", "version")}
    assert name == "scout"
    assert values == {"SHARE": 0.5, "LOW": -1.0, "seen_when_made": 0.5, "version": "1 (share=0.5, low=-1.0)"}
    assert isinstance(values["LOW"], float), "of the default's type"
    assert load(scout)[1].version == "1"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cutt": 4}, r"no option of agent 'learning_rate' named 'cutt'; did you mean 'cut'"),
        ({"cut": "fast"}, "agent 'learning_rate': option cut = 'fast' is not a finite number"),
        ({"cut": True}, "agent 'learning_rate': option cut = True is not a finite number"),
        ({"cut": [4]}, r"agent 'learning_rate': option cut = \[4\] is not a finite number"),
        ({"cut": math.inf}, "agent 'learning_rate': option cut = inf is not a finite number"),
        ({"cut": "nan"}, "agent 'learning_rate': option cut = 'nan' is not a finite number"),
        ({"cut": 10**400}, "is not a finite number"),
        ({"cut": -8}, r"agent 'learning_rate': option cut = -8: it must be above 0 \(default 8.0\)"),
        ({"cut": 0}, "it must be above 0"),
        (
            {"max_opposed_cosine": 0.05},
            r"agent 'learning_rate': option max_opposed_cosine = 0.05: it must be below 0 \(default -0.05\)",
        ),
        ({"window": 8.5}, r"agent 'learning_rate': option window = 8.5: it must be a whole number \(default 8\)"),
        (
            {"aligned_confidence": 1.5},
            r"agent 'learning_rate': option aligned_confidence = 1.5: it must be between 0 and 1 \(default 0.85\)",
        ),
        ({"cut": 4, "CUT": 5}, "agent 'learning_rate': option cut is set twice"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=words):
        checked_options("learning_rate", LearningRate, options)


def test_reward_weights_needs_readings_before_and_after_a_fall() -> None:
    with pytest.raises(ConfigError, match=r"min_evaluations = 2: it must be between 3 and 512"):
        checked_options("reward_weights", RewardWeights, {"min_evaluations": 2})


def test_an_entrys_options_reach_the_command_line_of_its_process(scout: str, tmp_path: Path) -> None:
    named = "{name: learning_rate, options: {CUT: 0.5, window: 12}}"
    settings = resolve(sets=[f"agents=[divergence, {named}, {{name: {scout}, options: {{low: 1e-3}}}}]"]).settings
    assert settings.agents == ("divergence", "learning_rate", scout)
    assert settings.agent_options == {"learning_rate": {"cut": 0.5, "window": 12}, "scout": {"low": 0.001}}
    shared, alone = make_pools(agent_specs(settings), None)
    arguments = ["--option", "learning_rate.cut=0.5", "--option", "learning_rate.window=12"]
    assert shared.arguments == [
        "divergence",
        "learning_rate",
        "--name",
        "divergence",
        "--name",
        "learning_rate",
        *arguments,
    ]
    assert alone.arguments == [scout, "--name", "scout", "--option", "scout.low=0.001"]
    folder = Home(tmp_path).create("r", "x")
    service = Plan(folder, "nats://x").joining_agent(AgentSpec("learning_rate", "learning_rate", (("cut", 4),)), "mine")
    assert service.command[-5:] == ("learning_rate", "--name", "mine", "--option", "mine.cut=4")


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ("agent_options.learnig_rate.cut=4", "no agent of this run named 'learnig_rate'; did you mean 'learning_rate'"),
        (
            "agents=[{name: learning_rate, options: {cut: fast}}]",
            "agent 'learning_rate': option cut = 'fast' is not a finite number",
        ),
        ("agent_options.learning_rate.cut=[1]", r"agent 'learning_rate': option cut = \[1\] is not a finite number"),
        ("agents=[{name: learning_rate, options: 4}]", "options"),
    ],
)
def test_settings_refuse_what_is_no_option(sets: str, words: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=words):
        resolve(sets=[sets])


def test_the_agent_process_sets_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}

    class EnoughError(Exception):
        pass

    def session(agent: Any, name: str, *, shadow: bool, create_window: Any) -> None:
        made[name] = agent
        if len(made) == 2:
            raise EnoughError

    monkeypatch.setattr(agent_host, "Session", session)
    with pytest.raises(EnoughError):
        agent_host.main(
            [
                "learning_rate",
                "divergence",
                "--name",
                "a",
                "--name",
                "b",
                *option_arguments("b", (("weights_share", 0.1), ("short_creep_ticks", 7))),
            ]
        )
    assert (made["b"].WEIGHTS_SHARE, made["b"].SHORT_CREEP_TICKS, made["a"].CUT) == (0.1, 7, 8.0)
    assert Divergence.WEIGHTS_SHARE == 0.3


def statements(path: Path) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    """Each statement of the module's and its classes' own bodies, with the one after it."""
    tree = ast.parse(path.read_text())
    for body in [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]:
        yield from zip(body, [*body[1:], None], strict=True)


def numeric(value: ast.expr | None) -> bool:
    """A number, or made of numbers by arithmetic, in a tuple, by `range`."""
    match value:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | float()):
            return True
        case ast.UnaryOp(operand=operand):
            return numeric(operand)
        case ast.BinOp(left=left_operand, right=right):
            return numeric(left_operand) or numeric(right)
        case ast.Tuple(elts=parts) | ast.Call(func=ast.Name(id="range"), args=parts):
            return any(map(numeric, parts))
        case ast.Dict(values=parts):
            return all(map(numeric, parts)) and bool(parts)
    return False


def test_every_numeric_constant_of_agents_says_what_it_is() -> None:
    folder = Path(oven_agents.__file__).parent
    silent, count = [], 0
    for path in sorted(folder.rglob("*.py")):
        for statement, after in statements(path):
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or not numeric(statement.value):
                continue
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            named = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            if not any(re.fullmatch("[A-Z][A-Z0-9_]*", name) for name in named):
                continue
            count += len(named)
            text = after.value if isinstance(after, ast.Expr) else None
            docstring = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
            if not docstring.strip() or len(named) > 1:
                silent.append(f"{path.relative_to(folder)}:{statement.lineno} {', '.join(named)}")
    assert not silent, "without a docstring of its own"
    assert count > 200


def test_invalid_options_of_a_users_agent_are_refused(scout: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="agent 'scout': BARE is not an option because it has no docstring"):
        load(scout, {"bare": 1})
    with pytest.raises(ConfigError, match="agent 'scout' sets FIXED in its constructor"):
        load(scout, {"fixed": 6})
    with pytest.raises(UnknownNameError, match="no option of agent 'scout' named 'shar'; did you mean 'share'"):
        load(scout, {"shar": 0.5})
    plain = tmp_path / "plain.py"
    plain.write_text("from oven_agents import Agent\nclass Plain(Agent):\n    moves = ('grad.clip',)\n")
    with pytest.raises(ConfigError, match="agent 'plain' has no options"):
        load(str(plain), {"share": 0.5})


def test_options_persist_when_a_run_is_resumed() -> None:
    result = resolve(
        sets=[
            "agents=[{name: learning_rate, options: {cut: 4}}, divergence]",
            "agent_options.divergence.weights_share=0.4",
        ]
    )
    assert result.settings.agent_options == {"learning_rate": {"cut": 4}, "divergence": {"weights_share": 0.4}}
    earlier = result.settings.model_dump(mode="json")
    assert resolve(earlier_settings=earlier).settings == result.settings
    resumed = resolve(earlier_settings=earlier, sets=["agent_options.learning_rate.cut=2"]).settings
    assert resumed.agent_options == {"learning_rate": {"cut": 2}, "divergence": {"weights_share": 0.4}}
    without = resolve(earlier_settings=earlier, sets=["agents=[divergence]"]).settings
    assert without.agent_options == {"divergence": {"weights_share": 0.4}}


def test_the_agent_process_refuses_an_unknown_option() -> None:
    with pytest.raises(SystemExit) as ended:
        agent_host.main(["learning_rate", "--option", "learning_rate.cut=4", "--check"])
    assert ended.value.code == 0
    with pytest.raises(UnknownNameError, match="no option of agent 'mine' named 'cuts'; did you mean 'cut'"):
        agent_host.main(["learning_rate", "--name", "mine", "--option", "mine.cuts=4", "--check"])
    with pytest.raises(UnknownNameError, match="no agent of this process named 'divergence'"):
        agent_host.main(["learning_rate", "--option", "divergence.weights_share=4", "--check"])
