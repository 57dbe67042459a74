"""The prose check: each rule matches its turn of phrase and passes plain English."""

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


def test_every_rule_has_its_sentences(prose: ModuleType) -> None:
    assert set(SENTENCES) == set(prose.RULES)
    assert all(rule.write and rule.reason for rule in prose.RULES.values())


def test_a_rule_matches_its_turn_of_phrase_and_no_plain_sentence(prose: ModuleType) -> None:
    for name, (turn, plain) in SENTENCES.items():
        assert list(prose.RULES[name].found(turn)), name
        assert not [rule_name for rule_name, rule in prose.RULES.items() if list(rule.found(plain))], name
