"""Programs that answer the questions of the task `stdlib` from the context alone, by parsing it. Pure.

They read their question from `query`, so that one text serves all questions of a kind: that is what a student of theirs
has to learn.
"""

from __future__ import annotations

from typing import Final

FIND: Final = """\
import re
names = re.findall(r"`([^`]+)`", query)
pieces, size = [[]], 0
for paragraph in context:
    if size + len(paragraph) > 6000 and pieces[-1]:
        pieces.append([])
        size = 0
    pieces[-1].append(paragraph)
    size += len(paragraph)
asked = "Does this text define `" + names[-1] + "`? Answer yes or no.\\n\\n"
replies = worker_batch([asked + "\\n\\n".join(piece) for piece in pieces])
print(len(pieces), "pieces;", sum(reply == "yes" for reply in replies), "of them define it")
"""
"""A first turn: where the worker sees the name defined."""

READ: Final = """\
import ast, re
names = re.findall(r"`([^`]+)`", query)
title = re.search("“(.+?)”", query).group(1)
inside, section, found = "# " + title not in context, "", []
for paragraph in context:
    if paragraph.startswith("# "):
        inside = paragraph == "# " + title
    elif inside and paragraph.startswith("## "):
        section = paragraph[3:]
    elif inside:
        found.append((section, paragraph))
"""
"""The document's paragraphs with their sections; other documents are left out."""

FUNCTION: Final = """\
def function(name):
    owner, _, short = name.rpartition(".")
    wanted = "class " + owner if owner else "Top level"
    for section, text in found:
        if section == wanted and re.search(r"\\bdef " + re.escape(short) + r"\\b", text):
            try:
                source = "class _:\\n" + text if text.startswith(" ") else text
                node = ast.parse(source).body[0]
            except SyntaxError:
                continue
            node = node.body[0] if text.startswith(" ") else node
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == short:
                return text, source, node
    return None
"""
CLASS: Final = """\
texts = [text for section, text in found if section == "class " + names[0]]
def methods():
    for text in texts[1:]:
        node = ast.parse("class _:\\n" + text).body[0].body[0]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, text
"""

DEFAULT: Final = f"""\
{READ}{FUNCTION}found_at = function(names[1])
if found_at is None:
    FINAL({{"answer": "Unanswerable", "evidence": []}})
text, source, node = found_at
given = node.args
both = given.posonlyargs + given.args
pairs = list(zip(both[len(both) - len(given.defaults):], given.defaults))
pairs += zip(given.kwonlyargs, given.kw_defaults)
value = dict((one.arg, default) for one, default in pairs)[names[0]]
FINAL({{"answer": ast.get_source_segment(source, value), "evidence": [text]}})
"""
PARAMETERS: Final = f"""\
{READ}{FUNCTION}text, source, node = function(names[0])
given = node.args
stars = [one for one in (given.vararg, given.kwarg) if one]
FINAL({{"answer": str(len(given.posonlyargs + given.args + given.kwonlyargs + stars)), "evidence": [text]}})
"""
YIELDS: Final = f"""\
{READ}{FUNCTION}text, source, node = function(names[1])
waiting, answer = list(node.body), "No"
while waiting:
    one = waiting.pop()
    if isinstance(one, (ast.Yield, ast.YieldFrom)):
        answer = "Yes"
    if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        waiting.extend(ast.iter_child_nodes(one))
FINAL({{"answer": answer, "evidence": [text]}})
"""
BASES: Final = f"""\
{READ}{CLASS}try:
    source = texts[0] + "\\n    pass"
    head = ast.parse(source).body[0]
except SyntaxError:
    source = texts[0]
    head = ast.parse(source).body[0]
bases = [ast.get_source_segment(source, base) for base in head.bases]
FINAL({{"answer": ", ".join(bases), "evidence": [texts[0]]}})
"""
METHODS: Final = f"""\
{READ}{CLASS}bodies = [text for name, text in methods()]
FINAL({{"answer": str(len(bodies)), "evidence": list(dict.fromkeys(bodies))}})
"""
OWN_METHOD: Final = f"""\
{READ}{CLASS}answer = "Yes" if names[1] in [name for name, text in methods()] else "No"
bodies = [text for name, text in methods()]
FINAL({{"answer": answer, "evidence": list(dict.fromkeys(texts[:1] + bodies))}})
"""

BY_WORDS: Final = (
    ("What is the default value", DEFAULT),
    ("How many parameters", PARAMETERS),
    ("Is there a `yield`", YIELDS),
    ("Which classes does", BASES),
    ("How many methods", METHODS),
    ("Does the body of the class", OWN_METHOD),
)
"""How a question begins, and the program that answers it."""


def program_for(question: str) -> str:
    """Raises LookupError for a question of another task."""
    for words, program in BY_WORDS:
        if words in question:
            return program
    raise LookupError(f"no program answers {question[:60]!r}")
