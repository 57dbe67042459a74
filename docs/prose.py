"""Checks the project's prose: `python docs/prose.py` lists the turns of phrase that we do not write.

It reads README.md, CHANGELOG.md, the pages under docs/, and the docstrings and string literals of the packages, without
their code and generated tables. No line can be excused; `LEFT_OUT` and `DOCSTRINGS_ONLY` name what is not read, with
the reason. Exit code 1 if anything is found.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("controller", "agents", "learner", "kg", "tui", "bench")
LEFT_OUT: Final = {
    "docs/protocol/": "generated from the messages",
    "controller/oven_core/protocol/": "the published schema holds these texts, and a golden its digest",
}
"""Beginning of a path → why nothing in it is checked."""
DOCSTRINGS_ONLY: Final = {
    "controller/oven_core/mesh/": "recorded logs hold these reasons",
    "agents/oven_agents/shipped/": "recorded logs hold these reasons",
    "agents/oven_agents/stats/": "recorded logs hold these reasons",
    "learner/oven_learner/rewards/verdicts.py": "recorded logs hold these failures",
    "learner/oven_learner/actuators.py": "receipts in recorded logs hold these reasons",
    "learner/oven_learner/client/commands.py": "receipts in recorded logs hold these reasons",
    "learner/oven_learner/rollback/disk_checkpoints.py": "receipts in recorded logs hold these reasons",
    "bench/oven_bench/gym/tasks/": "models are trained on these texts; recorded receipts hold these reasons",
}
"""Beginning of a path → why its string literals are not checked."""


class Rule(NamedTuple):
    """A turn of phrase: `pattern` is a regular expression in which a space stands for any white space."""

    pattern: str
    write: str
    reason: str

    def found(self, text: str) -> Iterator[re.Match[str]]:
        """Where `text` has it, in any case."""
        return re.finditer(self.pattern.replace(" ", r"\s+"), text, re.IGNORECASE)


DEGREE: Final = (
    r"(?!(?:longer|more|less|later|fewer|sooner|faster|slower|one|good|higher|worse|further|larger|better|other|use)\b)"
)
COUNT: Final = r"(?:bytes?|bits?|steps?|ticks?|tokens?|events?|messages?|times|once|ms|µs|s|[KM]iB|[KMG]B)"
UNIT: Final = r"(?:byte|second|minute|hour|step|tick|token|event|message|run|agent|batch|sequence|pass)"
OWN: Final = r"(?:its|their|your|our|his|one's) own"
NO_NOUN: Final = r"(?! (?!(?:and|or|that|which|in|is|on|for|with|to|at|by|from|as|if|when|where|while|because)\b)\w)"
"""After OWN: no noun follows, as one does in "a refusal of your own proposal"."""
HOLDER: Final = r"(?:the|its|an?|this|that|it|them)"
CLAIM: Final = r"(?:simply|obviously|basically|merely|clearly|easily|seamlessly|really|truly)"
PRAISE: Final = (
    r"(?:powerful|elegant|blazing|cutting-edge|state-of-the-art|best-in-class|leverag\w+|utili[sz]\w+|delv\w+)"
)
IMAGE: Final = r"(?:futile|in vain|yardstick|bookkeeping|second thoughts|watchful|under the hood|out of the box)"
RULES: Final = {
    "nobody": Rule(r"\bnobody\b", "no one, or an active sentence", "as a subject it reads as translated"),
    "whoever": Rule(r"\bwhoever\b", "anyone who, or the role", "it reads as translated"),
    "is no X": Rule(rf"(?<!here\s)\b(?:is|are|was) no {DEGREE}[a-z]\w*", "is not a X", "it reads as translated"),
    "goes on": Rule(r"\b(?:go|goes|going|went|gone) on\b(?! the\b)", "continue", "it is ambiguous"),
    "X of its own": Rule(rf"\ban? (?:[\w-]+ ){{1,2}}of {OWN}\b{NO_NOUN}", "its own X", "the usual order is shorter"),
    "less for minus": Rule(r"\bless (?:the|its|their) [\w’'-]+'s\b", "minus", "less is a comparison"),
    "stands in": Rule(
        rf"\b(?:stand|stands|stood|standing) in {HOLDER}\b", "is in, is recorded in", "texts do not stand"
    ),
    "a step for per": Rule(rf"\b{COUNT} an? {UNIT}\b", "per", "it is the word of a rate"),
    "if left out": Rule(r"\b(?:if|where|when) (?:\w+ (?:is|are) )?left out\b", "if omitted", "it is the usual word"),
    "what came of": Rule(r"\bwhat (?:came|has come|became) of\b", "the outcome of", "an outcome has a name"),
    "ends in order": Rule(r"\b(?:ends?|ended|ending|stops?|stopped|down) in order\b", "cleanly", "it names no order"),
    "in order to": Rule(r"\bin order (?:to|that)\b", "to, so that", "it says nothing more"),
    "without a word": Rule(r"\bwithout (?:a|one) word\b", "silently", "programs do not speak"),
    "likeliest": Rule(r"\b(?:un)?likeliest\b", "most likely", "it is the usual form"),
    "adverb": Rule(rf"\b{CLAIM}\b", "the sentence without it", "it claims what the sentence has to show"),
    "praise": Rule(rf"\b{PRAISE}\b", "what it does, with a figure", "praise is not information"),
    "metaphor": Rule(rf"\b{IMAGE}\b", "the field's word", "a stranger cannot look an image up"),
    "one machine": Rule(
        r"(?<![\w.~>-])/(?:root|Users|workspace|home|work|mnt)/\w", "a relative path", "others lack it"
    ),
}
"""Name → rule."""


def prose_of(path: Path, *, literals: bool = True) -> Iterator[tuple[int, str]]:
    """(line, text) of each text in a page or module, without the code in it."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        for pattern in (r"<!-- generated: .*?<!-- end -->", r"^ *(```+).*?^ *\1"):
            text = re.sub(pattern, _blank, text, flags=re.DOTALL | re.MULTILINE)
        yield 1, without_code(text)
        return
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and literals:
            held = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            yield node.lineno, without_code("".join(map(str, held)))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (id(node) in docstrings or (literals and id(node) not in parts))
        ):
            yield node.lineno, without_code(node.value)


def without_code(text: str) -> str:
    """`text` with what is between backquotes, and the targets of links, blanked out."""
    return re.sub(r"`[^`]*`|\]\([^)\s]*\)|https?://\S+", _blank, text)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "_", match[0])


def pages_and_modules(root: Path) -> Iterator[Path]:
    """What is checked, in order."""
    pages = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]
    modules = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    for path in (*pages, *modules):
        if path.is_file() and not path.relative_to(root).as_posix().startswith(tuple(LEFT_OUT)):
            yield path


def findings(root: Path) -> Iterator[str]:
    """`path:line: 'words': write …; reason`, in the order of the files."""
    for path in pages_and_modules(root):
        name = path.relative_to(root).as_posix()
        for line, text in prose_of(path, literals=not name.startswith(tuple(DOCSTRINGS_ONLY))):
            for rule in RULES.values():
                for match in rule.found(text):
                    at = line + text.count("\n", 0, match.start())
                    yield f"{name}:{at}: {' '.join(match[0].split())!r}: write {rule.write}; {rule.reason}"


if __name__ == "__main__":
    found = list(findings(ROOT))
    print("\n".join(found) or "prose: nothing found")
    sys.exit(1 if found else 0)
