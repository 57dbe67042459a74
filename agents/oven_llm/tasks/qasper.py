"""QASPER: questions about papers of natural-language processing, with all four kinds of answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, reason
from oven_llm.tasks.example import NO, UNANSWERABLE, YES, Document, Example, Reference
from oven_llm.tasks.qasper_layouts import SOURCE, read_papers

INSTRUCTIONS = (
    "The context is a list of the document's paragraphs, in their order; lines that begin with ## are headings. Call "
    'FINAL({"answer": answer, "evidence": paragraphs}). The answer is short: words of the document joined by ", ", a '
    f'phrase, "{YES}", "{NO}", or "{UNANSWERABLE}" if the document does not say. The evidence is a list of the '
    f"paragraphs that show it, copied whole from the context, and empty for {UNANSWERABLE}."
)


class Qasper:
    """The task `qasper`: a released file or the hub's rows."""

    name = "qasper"
    instructions = INSTRUCTIONS

    def examples(self, data: Path | None, seed: int, count: int) -> list[Example]:
        """All questions of the file. Raises ConfigError."""
        if data is None:
            raise ConfigError(
                f"the task qasper has no data file; download QASPER from {SOURCE}, and name the JSON with --data"
            )
        return examples_of(data)


def examples_of(path: Path) -> list[Example]:
    """The questions of a file in either layout. Raises ConfigError."""
    return examples_in(read_papers(path), f"the data file {path}")


def examples_in(papers: Iterable[tuple[str, Mapping[str, Any]]], called: str) -> list[Example]:
    """The questions of papers in the released layout, in their order; of an id that stands twice, the last. `called`:
    what holds them, for messages. Raises ConfigError."""
    found: dict[str, Example] = {}
    for key, paper in papers:
        document = Document(key, str(paper.get("title") or key), tuple(_paragraphs(paper)))
        for asked in _listed(called, key, paper, "qas"):
            if (example := _example(called, document, asked)) is not None:
                found[example.id] = example
    if not found:
        raise ConfigError(f"{called} holds no question with an answer")
    return list(found.values())


def _example(called: str, document: Document, asked: Mapping[str, Any]) -> Example | None:
    """None without an answer: the test set was first released so."""
    answers = _listed(called, document.id, asked, "answers")
    try:
        id_, question = str(asked["question_id"]), str(asked["question"])
        references = tuple(reference(one["answer"]) for one in answers)
    except KeyError as error:
        raise ConfigError(f"{called}, paper {document.id}: a question lacks {error}") from error
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{called}, question {asked.get('question_id')!r}: {reason(error)}") from error
    if references and not document.paragraphs:
        raise ConfigError(f"{called}, paper {document.id} has questions and no text to read")
    return Example(id_, document, question, references) if references else None


def reference(answer: Mapping[str, Any]) -> Reference:
    """An annotator's answer, by the official order of its fields. Raises ValueError where it holds none."""
    evidence = tuple(str(one) for one in answer.get("evidence") or ())
    spans = answer.get("extractive_spans")
    if answer.get("unanswerable"):
        return Reference(UNANSWERABLE, (), "none")
    if spans:
        return Reference(", ".join(map(str, spans)), evidence, "extractive")
    if answer.get("free_form_answer"):
        return Reference(str(answer["free_form_answer"]), evidence, "abstractive")
    if answer.get("yes_no") is not None:
        return Reference(YES if answer["yes_no"] else NO, evidence, "boolean")
    raise ValueError("an annotator's answer has no span, no text, no yes or no, and is not marked unanswerable")


def _listed(called: str, paper: str, holder: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    found = holder.get(name) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(one, Mapping) for one in found):
        raise ConfigError(f"{called}, paper {paper}: {name} is {str(found)[:40]!r}, and not a list of records")
    return found


def _paragraphs(paper: Mapping[str, Any]) -> list[str]:
    """The abstract, each section's paragraphs below its heading, and captions at the end; empty ones left out."""
    found = [str(paper.get("abstract") or "")]
    for section in paper.get("full_text") or ():
        found.append(f"## {section.get('section_name') or 'Section'}")
        found += [str(one) for one in section.get("paragraphs") or ()]
    captions = [str(one.get("caption") or "") for one in paper.get("figures_and_tables") or ()]
    found += ["## Figures and tables", *captions] if any(captions) else []
    return [one for one in found if one.strip()]


TASK = Qasper()
