"""Honest programs, as a supervisor writes them over a long text. Each has a known output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CONTEXT: Final = "alpha 3\nbeta 1\ngamma 2\n" * 40
"""The value of their variable `context`."""


@dataclass(frozen=True)
class Snippet:
    """`printed` is the right output."""

    name: str
    code: str
    printed: str


SNIPPETS: Final = (
    Snippet(
        "comprehensions", "print(sum(n * n for n in range(10)), {c: ord(c) for c in 'ab'})", "285 {'a': 97, 'b': 98}"
    ),
    Snippet(
        "generators",
        """
def chunks(text, size):
    for at in range(0, len(text), size):
        yield text[at : at + size]
print(len(list(chunks(context, 100))))
""",
        "10",
    ),
    Snippet(
        "classes",
        """
class Counter:
    def __init__(self, start=0):
        self.value = start
    def add(self, n):
        self.value += n
        return self
print(Counter(2).add(3).add(4).value)
""",
        "9",
    ),
    Snippet(
        "dataclasses",
        """
from dataclasses import dataclass
@dataclass
class Finding:
    text: str
    score: float = 0.5
print(Finding("x"), Finding("x") == Finding("x", 0.5))
""",
        "Finding(text='x', score=0.5) True",
    ),
    Snippet(
        "annotations",
        "def top(rows: list[tuple[str, int]], n: int = 1) -> list[str]:\n"
        "    found: list[str] = [name for name, _ in rows]\n"
        "    return found[:n]\nprint(top([('a', 1), ('b', 2)]))",
        "['a']",
    ),
    Snippet(
        "match",
        """
def kind(value):
    match value:
        case {"type": "span", "text": str(text)}:
            return text
        case [first, *_]:
            return first
        case _:
            return "other"
print(kind({"type": "span", "text": "s"}), kind([7, 8]), kind(3))
""",
        "s 7 other",
    ),
    Snippet(
        "star-unpacking",
        "first, *rest = [1, 2, 3]\nprint(first, rest, [*rest, *rest], {**{'a': 1}, 'b': 2})",
        "1 [2, 3] [2, 3, 2, 3] {'a': 1, 'b': 2}",
    ),
    Snippet(
        "re", "import re\nprint(len(re.findall(r'(?m)^beta (\\d)$', context)), re.sub(r'\\s+', ' ', 'a  b'))", "40 a b"
    ),
    Snippet(
        "json",
        "import json\nprint(json.loads(json.dumps({'a': [1, None, True]}, sort_keys=True)))",
        "{'a': [1, None, True]}",
    ),
    Snippet(
        "math", "import math\nprint(round(math.sqrt(2), 4), math.floor(2.7), math.isnan(math.nan))", "1.4142 2 True"
    ),
    Snippet("statistics", "import statistics\nprint(statistics.mean([1, 2, 6]), statistics.median([5, 1, 3]))", "3 3"),
    Snippet(
        "collections",
        "from collections import Counter, defaultdict\nby = defaultdict(list)\nfor word in 'a b a'.split():\n"
        "    by[word].append(1)\nprint(Counter('abca').most_common(1), dict(by))",
        "[('a', 2)] {'a': [1, 1], 'b': [1]}",
    ),
    Snippet(
        "itertools",
        "import itertools\nprint(list(itertools.chain([1], [2])), list(itertools.islice(itertools.count(5), 2)))",
        "[1, 2] [5, 6]",
    ),
    Snippet("functools", "import functools\nprint(functools.reduce(lambda a, b: a * b, [1, 2, 3, 4]))", "24"),
    Snippet("heapq", "import heapq\nprint(heapq.nlargest(2, [3, 1, 4, 1, 5]))", "[5, 4]"),
    Snippet(
        "datetime",
        "from datetime import datetime, timedelta\nprint(datetime.fromisoformat('2026-02-11') + timedelta(days=1))",
        "2026-02-12 00:00:00",
    ),
    Snippet("textwrap", "import textwrap\nprint(textwrap.shorten('one two three', 8))", "[...]"),
    Snippet(
        "io.StringIO", "import io\nout = io.StringIO()\nprint('x', file=out)\nprint(repr(out.getvalue()))", "'x\\n'"
    ),
    Snippet(
        "string formatting",
        "x = 3.14159\nprint(f'{x:.2f}|{x!r:>9}|{\"a\":<3}|', '{:>4}'.format(7), '%d%%' % 5)",
        "3.14|  3.14159|a  |    7 5%",
    ),
    Snippet("recursion", "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nprint(fib(15))", "610"),
    Snippet(
        "sorting by key",
        "rows = [line.split() for line in context.splitlines()[:3]]\n"
        "print(sorted(rows, key=lambda row: int(row[1]), reverse=True)[0])",
        "['alpha', '3']",
    ),
    Snippet(
        "exceptions",
        """
def parsed(text):
    try:
        return int(text)
    except ValueError as error:
        return type(error).__name__
    finally:
        pass
print(parsed("7"), parsed("x"))
""",
        "7 ValueError",
    ),
    Snippet(
        "closures and sets",
        """
def counter():
    seen = set()
    def add(name):
        nonlocal seen
        seen = seen | {name}
        return len(seen)
    return add
add = counter()
add("a"); add("b")
print(add("a"), sorted({1, 2} & {2, 3} | {9}))
""",
        "2 [2, 9]",
    ),
    Snippet(
        "workers",
        """
parts = [context[at : at + 200] for at in range(0, len(context), 200)]
answers = [worker(f"How often is beta in:\\n{part}") for part in parts]
total = sum(int(answer) for answer in answers)
print(len(answers), total >= 38)
""",
        "5 True",
    ),
    Snippet("numpy", "import numpy as np\nprint(np.arange(3).sum())", "3"),
)
