"""The prose check: each rule finds its turn of phrase and passes plain English; nothing can be excused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "prose.py"

SENTENCES = {
    "nobody": ("A metric that nobody measures is absent.", "A metric that is not measured is absent."),
    "whoever": ("Whoever asks gets the whole log.", "Anyone who asks gets the whole log."),
    "is no X": ("The value 'x' is no number.", "There is no number in it, and it is no longer than before."),
    "goes on": ("When the bus is away training goes on.", "It goes on the votes' stream and continues there."),
    "X of its own": ("The link runs in a process of its own.", "The link runs in its own process."),
    "less for minus": ("Regret is the tuned accuracy less the arm's.", "It costs less than the arm does."),
    "stands in": ("The reason stands in the log.", "The run stands still; the reason is in the log."),
    "a step for per": ("The agent costs 2 ms a step.", "In 2 ms per step the agent has a step to look at."),
    "if left out": ("The newest run if left out.", "What was left out is listed [default: the newest run]."),
    "what came of": ("It says what became of the change.", "It says what came with the change, and its outcome."),
    "ends in order": ("The run ended in order.", "The run ended cleanly, and its events are in order."),
    "in order to": ("Attach in order to be told.", "Attach to be told; events come in the order of the log."),
    "without a word": ("The trainer takes it without a word.", "The trainer takes it silently, without words."),
    "likeliest": ("The likeliest cause comes first.", "The most likely cause comes first."),
    "adverb": ("It simply works.", "It works under the conditions of table 2."),
    "praise": ("A powerful controller.", "A controller that undid 14 % of the harm; statistical power .8."),
    "metaphor": ("Rollbacks are futile by then.", "Rollbacks are exhausted by then."),
    "one machine": ("The keys are in /home/ann/nats.", "The keys are in ~/nats, and pages under docs/home/."),
}
"""A rule's name → a sentence that it finds, and one that it does not."""


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("oven_docs_prose", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found(prose: ModuleType, root: Path, name: str, text: str) -> list[str]:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return list(prose.findings(root))


def test_every_rule_has_its_sentences(prose: ModuleType) -> None:
    assert set(SENTENCES) == set(prose.RULES)
    assert all(rule.write and rule.reason for rule in prose.RULES.values())


@pytest.mark.parametrize("name", SENTENCES)
def test_a_rule_finds_its_turn_of_phrase_and_no_plain_sentence(prose: ModuleType, name: str) -> None:
    turn, plain = SENTENCES[name]
    assert list(prose.RULES[name].found(turn))
    assert not [other for other, rule in prose.RULES.items() if list(rule.found(plain))]


def test_pages_are_read_without_their_code_and_generated_tables(prose: ModuleType, tmp_path: Path) -> None:
    page = (
        "# Log\n\nTraining goes\non. `nobody`\n\n```sh\necho nobody\n```\n\n[all](https://a.org/nobody.html)\n"
        "<!-- generated: rules -->\nNobody.\n<!-- end -->\n"
    )
    assert found(prose, tmp_path, "docs/log.md", page) == [
        "docs/log.md:3: 'goes on': write continue; it is ambiguous",
    ]


def test_modules_are_read_by_docstring_and_literal(prose: ModuleType, tmp_path: Path) -> None:
    module = '''"""What nobody reads.

Not `nobody`, nor a comment."""

LIMIT = 3  # nobody asks
"""Bytes
that nobody sends."""


def why(name: str) -> str:
    return f"{name} is no number: " "nobody " f"reads {name}"
'''
    lines = [line.split(": ")[0] for line in found(prose, tmp_path, "kg/oven_kg/why.py", module)]
    assert lines == ["kg/oven_kg/why.py:1", "kg/oven_kg/why.py:7", *["kg/oven_kg/why.py:11"] * 2]


def test_what_is_left_out_is_left_out_by_its_folder_alone(prose: ModuleType, tmp_path: Path) -> None:
    module = '"""Nobody."""\nWHY = "nobody voted"  # noqa\n'
    assert len(found(prose, tmp_path, "agents/oven_agents/shipped/new.py", module)) == 1
    assert len(found(prose, tmp_path, "agents/oven_agents/new.py", module)) == 1 + 2
    assert len(found(prose, tmp_path, "docs/protocol/messages.md", "Nobody.")) == 1 + 2


def test_each_exception_is_for_something_and_has_a_reason(prose: ModuleType) -> None:
    for beginning, reason in {**prose.LEFT_OUT, **prose.DOCSTRINGS_ONLY}.items():
        assert reason and (SCRIPT.parents[1] / beginning).exists(), beginning
