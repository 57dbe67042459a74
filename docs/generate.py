"""Writes the tables of the docs that the code decides: `python docs/generate.py` (or `--check`, which writes nothing).

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`; tests/unit/test_docs.py fails when one is stale.
"""

from __future__ import annotations

import inspect
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from oven_controller.cli.review_json import review_schema
from oven_core.bus import streams
from oven_core.protocol import (
    codec,
    committee_requests,
    completion_messages,
    graph_requests,
    history_requests,
    judge_spec,
    messages,
)
from oven_core.protocol.asyncapi import generate_asyncapi
from oven_core.protocol.permissions import Role, permissions
from oven_core.protocol.rules import Rules
from oven_core.protocol.subjects import SUBJECTS
from oven_core.protocol.unlogged_subjects import REQUESTS, UNLOGGED_SUBJECTS
from oven_core.replica.replica_process import REPLY_BYTES
from oven_runs.server import embedded_server
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.language_models import ModelSettings
from oven_runs.settings.notifications import RecipientSettings
from oven_runs.settings.run_settings import RuleSettings, Settings
from oven_runs.traces.formats.format_lookup import FORMATS, format_named

sys.path.append(str(Path(__file__).parent))  # for the import of this file by tests

import example_runs
import finding_pictures

PAGES = (
    "../README.md", "architecture.md", "protocol.md", "protocol/messages.md", "deciding.md", "settings.md", "traces.md",
    "what-is-wrong.md", "plugging-in.md",
)  # fmt: skip
ROOT = Path(__file__).parents[1]
COMPONENTS = ("controller", "agents", "learner", "kg", "tui", "bench", "tests")
BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PARTS = (
    messages.ActuatorSpec,
    messages.MetricSpec,
    messages.Horizon,
    messages.TallyLine,
    judge_spec.JudgeSpec,
    messages.OutcomeLine,
    history_requests.LoggedEvent,
    committee_requests.Completion,
    committee_requests.JudgeHealth,
    graph_requests.Symptom,
    graph_requests.EvidencePath,
    graph_requests.Cause,
    graph_requests.Remedy,
    graph_requests.Mastery,
    graph_requests.UnmetPrerequisite,
    graph_requests.QueryRow,
    completion_messages.ShownText,
    completion_messages.ShownCompletion,
    completion_messages.MemberScores,
    completion_messages.StoredGroup,
)


def trace_formats() -> str:
    """What each format of traces is, keeps aside, and loses."""
    rows = []
    for name in FORMATS:
        one = format_named(name)
        losses = "; ".join(f"{what}: {why}" for what, why in one.loses.items())
        rows.append(f"| `{name}` | {one.about} | {', '.join(one.extra_fields) or '–'} | {losses or 'nothing'} |")
    return "\n".join(
        ["| format | what it is | stored as extra data, whole or in part | lost |", "|---|---|---|---|", *rows]
    )


def subjects() -> str:
    """Which message may stand on which subject."""
    rows = ["| subject | messages |", "|---|---|"]
    for subject in SUBJECTS:
        message_names = ", ".join(f"`{model.__name__}`" for model in subject.message_types)
        rows.append(f"| `{subject.address('<run>', f'<{subject.last_token}>')}` | {message_names} |")
    return "\n".join(rows)


def who() -> str:
    """Each role's permissions, as the embedded server holds them."""
    rows = ["| role | may publish | may subscribe |", "|---|---|---|"]
    for role in get_args(Role):
        allowed = permissions(role, "NAME", "RUN")
        cells = [
            "<br>".join(
                (*map(_subject, allowed[verb]["allow"]), *(f"not {_subject(s)}" for s in allowed[verb].get("deny", ())))
            )
            for verb in ("publish", "subscribe")
        ]
        rows.append(f"| {role} | {cells[0]} | {cells[1]} |")
    return "\n".join(rows)


def _subject(text: str) -> str:
    return "`" + text.replace("NAME", "<name>").replace("RUN", "<run>") + "`"


def logged() -> str:
    return "\n\n".join(_model(model) for subject in SUBJECTS for model in subject.message_types)


def aside() -> str:
    return "\n\n".join(_model(entry.message_type) for entry in UNLOGGED_SUBJECTS)


def asked() -> str:
    return "\n\n".join(_model(model) for request in REQUESTS for model in (request.request_type, request.reply_type))


def parts() -> str:
    return "\n\n".join(_model(model) for model in PARTS)


def limits() -> str:
    votes, log = streams.configs("RUN")
    shown = streams.completions_config("RUN")
    rows = [
        ("a vote or status, headers included", f"{votes.max_msg_size:,} bytes"),
        ("any other event in the log", f"{log.max_msg_size:,} bytes"),
        ("any message at all (the embedded server's `max_payload`)", f"{embedded_server.MAX_PAYLOAD_BYTES:,} bytes"),
        ("a `history` answer ends early at about", f"{REPLY_BYTES:,} bytes of events"),
        (
            "messages of one agent on one of its three subjects",
            f"{votes.max_msgs_per_subject} within {votes.max_age:g} s; more are dropped, unanswered",
        ),
        ("how long the log remembers a message id", f"{log.duplicate_window:g} s"),
        ("a sampled group of completions", f"{shown.max_msg_size:,} bytes; its texts are cut until it fits"),
        (
            "sampled groups of a run that are kept",
            f"{shown.max_msgs:,}, {shown.max_bytes:,} bytes, {shown.max_age / 86400:g} days; the oldest go",
        ),
    ]
    return "\n".join(["| what | limit |", "|---|---|", *(f"| {what} | {limit} |" for what, limit in rows)])


def rules() -> str:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in RuleSettings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = f"{default:.4g}" if isinstance(default, float) else _pairs(default)
        rows.append(f"| `rules.{name}` | {shown} | {field.description} |")
    return "\n".join(rows)


def settings() -> str:
    """Every setting but the rules, which have a table of their own."""
    rows = ["| setting | values | default | meaning |", "|---|---|---|---|"]
    rows += _settings(Settings, "")
    rows += _settings(MemberSettings, "committee.members.NAME.")
    rows += _settings(ModelSettings, "tuner.llm.")
    rows += _settings(ModelSettings, "author.llm.")
    rows += _settings(ModelSettings, "supervisor.model.")
    rows += _settings(RecipientSettings, "notify.to.N.")
    return "\n".join(rows)


def _settings(model: type[BaseModel], prefix: str) -> list[str]:
    rows: list[str] = []
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows += [] if issubclass(inner, Rules) else _settings(inner, f"{prefix}{name}.")
            continue
        values = re.sub(r"\[\w+\]\(#\w+\)", "object", _type(schema["properties"][name]))
        default = "needed" if field.is_required() else _default(model, name)
        rows.append(f"| `{prefix}{name}` | {values} | {default} | {field.description} |")
    return rows


def stacks() -> str:
    """Each version of a trainer's library, and what attaching to it gave (`bench stacks --rows docs/stacks.json`)."""
    rows = ["| stack | versions | trainings | in `observe` | decision | replay |", "|---|---|---|---|---|---|"]
    notes: dict[tuple[str, str], dict[str, None]] = {}  # stack and sentence → names of trainings
    for stack in json.loads((ROOT / "docs" / "stacks.json").read_text()):
        versions = ", ".join(f"{name} {version}" for name, version in stack["versions"].items() if name != "torch")
        works = [training for training in stack["trainings"] if not training["failure"]]
        names = ", ".join(training["name"].removeprefix("trainer/") for training in works)
        columns = [
            _of_all(works, "observed", "equal"),
            _of_all(works, "decision", "applied"),
            _of_all(works, "replayed", "equal"),
        ]
        rows.append(f"| {stack['stack']} | {versions} | {names} | {' | '.join(columns)} |")
        for training in stack["trainings"]:
            lines = [f"fails without us: `{training['failure']}`"] if training["failure"] else training["sentences"]
            for line in lines:
                notes.setdefault((stack["stack"], line), {})[training["name"].removeprefix("trainer/")] = None
    listed = [f"- {name}, {', '.join(trainings)}: {line}" for (name, line), trainings in notes.items()]
    title = "Switched off, in the words of `attach`, and trainings that fail without us:"
    return "\n".join([*rows, "", title, "", *listed])


def _of_all(trainings: list[dict[str, Any]], name: str, good: str) -> str:
    count = sum(training[name].startswith(good) for training in trainings)
    return good if count == len(trainings) else f"{good} in {count} of {len(trainings)}"


def sizes() -> str:
    """Files and lines of Python by component, as git tracks them."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[int]] = {}
    for name in listed.splitlines():
        if (lines := len((ROOT / name).read_text().splitlines())) and name.split("/")[0] in COMPONENTS:
            found.setdefault(name.split("/")[0], []).append(lines)
    rows = ["| component | files | lines | median | 90 % are below | largest |", "|---|--:|--:|--:|--:|--:|"]
    for component in COMPONENTS:
        each = sorted(found[component])
        ninth = statistics.quantiles(each, n=10, method="inclusive")[-1]
        middle = statistics.median(each)
        rows.append(f"| `{component}/` | {len(each)} | {sum(each):,} | {middle:.0f} | {ninth:.0f} | {each[-1]} |")
    return "\n".join(rows)


def review_overfit() -> str:
    return f"```text\n{finding_pictures.printed({'train.log': 'overfit'})}\n```"


def review_short() -> str:
    """The same without the notes on how the log was read."""
    name, *lines = finding_pictures.printed({"train.log": "overfit"}).splitlines()
    findings = dropwhile(lambda line: not line.startswith("act:"), lines)
    return "\n".join(["```text", name, *findings, "```"])


def review_healthy() -> str:
    picture = "![A loss and a held-out loss that both fall](findings/healthy.svg)"
    return f"{picture}\n\n```text\n{finding_pictures.printed({'train.log': 'healthy'})}\n```"


def review_files() -> str:
    files = {"runs/base.csv": "healthy", "runs/lr-3e-3.csv": "diverged", "runs/epochs-9.csv": "overfit"}
    return f"```text\n{finding_pictures.printed(files)}\n```"


def review_json() -> str:
    printed = finding_pictures.printed({"train.log": "overfit"}, "--json")
    return f"```json\n{json.dumps(json.loads(printed), indent=2, ensure_ascii=False)}\n```"


GENERATORS: dict[str, Callable[[], str]] = {
    "trace-formats": trace_formats,
    "subjects": subjects,
    "permissions": who,
    "logged": logged,
    "aside": aside,
    "asked": asked,
    "parts": parts,
    "limits": limits,
    "rules": rules,
    "settings": settings,
    "stacks": stacks,
    "sizes": sizes,
    "review-overfit": review_overfit,
    "review-short": review_short,
    "review-healthy": review_healthy,
    "review-files": review_files,
    "review-json": review_json,
}
GENERATORS |= {
    f"finding-{run.kind.replace('_', '-')}": partial(finding_pictures.finding_block, run.kind)
    for run in example_runs.RUNS
}
UNCHECKED = ("sizes",)
"""What every change of any file changes: it is made anew with the other tables, and may be stale."""


def renewed(text: str, unchecked: Collection[str] = UNCHECKED) -> str:
    """The page with every generated block but `unchecked` as it should be now. Raises KeyError for a block that nobody
    makes."""

    def block(found: re.Match[str]) -> str:
        return found[0] if found[2] in unchecked else f"{found[1]}\n{GENERATORS[found[2]]()}\n\n{found[3]}"

    return BLOCK.sub(block, text)


def _model(model: type[BaseModel]) -> str:
    schema = model.model_json_schema()
    # A message is told apart by its type, so on the wire that is needed although the model has a default.
    needed = {*schema.get("required", ()), "type"}
    rows = [
        f"#### {model.__name__}",
        "",
        inspect.cleandoc(model.__doc__ or ""),
        "",
        "| field | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for name, spec in schema["properties"].items():
        default = "needed" if name in needed else _default(model, name)
        rows.append(f"| `{name}` | {_type(spec)} | {default} | {spec.get('description', '')} |")
    return "\n".join(rows)


def _default(model: type[BaseModel], name: str) -> str:
    field = next(field for own, field in model.model_fields.items() if name in (own, field.alias))
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Rules):
        return "the defaults"
    if isinstance(default, BaseModel):
        return "empty"
    return _pairs(default)


def _pairs(default: Any) -> str:
    if default is None:
        return "`null`"
    if default == "":
        return '`""`'
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        parts = [" and ".join(part) if isinstance(part, tuple) else str(part) for part in default]
        return "<br>".join(f"`{part}`" for part in parts) if parts else "`[]`"
    if default == {}:
        return "`{}`"
    return f"`{default}`" if isinstance(default, str) else str(default)


def _type(spec: dict[str, Any]) -> str:
    if "$ref" in spec:
        name = spec["$ref"].rsplit("/", 1)[-1]
        return "[Rules](../deciding.md#rules)" if name == "Rules" else f"[{name}](#{name.lower()})"
    if spec.get("anyOf", [])[1:2] == [{"enum": ["NaN", "Infinity", "-Infinity"]}]:
        return "number" + _bounds(spec)
    if "anyOf" in spec:
        return " or ".join(_type(part) for part in spec["anyOf"])
    if "const" in spec:
        const = spec["const"]
        return f'`"{const}"`' if isinstance(const, str) else f"`{const}`"
    if "enum" in spec:
        return ", ".join(f'`"{value}"`' if isinstance(value, str) else f"`{value}`" for value in spec["enum"])
    kind = spec.get("type", "anything")
    if kind == "array":
        return f"list of {_type(spec.get('items', {}))}" + _bounds(spec)
    if kind == "object":
        inner = spec.get("additionalProperties")
        return f"name → {_type(inner)}" if isinstance(inner, dict) else "object"
    return ("int" if kind == "integer" else str(kind)) + _bounds(spec)


def _bounds(spec: dict[str, Any]) -> str:
    words = {
        "minimum": "≥ {}",
        "exclusiveMinimum": "> {}",
        "maximum": "≤ {}",
        "maxLength": "at most {} characters",
        "maxItems": "at most {} of them",
    }
    found = [text.format(spec[key]) for key, text in words.items() if key in spec]
    return f", {', '.join(found)}" if found else ""


def documents() -> dict[str, str]:
    """Whole files: path under docs/ → contents."""
    made = {"log.schema": codec.json_schema(), "requests.schema": codec.service_schema()}
    made |= {"asyncapi": generate_asyncapi(), "review.schema": review_schema()}
    documents = {f"protocol/{name}.json": json.dumps(made[name], indent=1, ensure_ascii=False) + "\n" for name in made}
    return documents | finding_pictures.pictures()


def main(args: list[str]) -> int:
    here = Path(__file__).parent
    unchecked = UNCHECKED if "--check" in args else ()
    wanted = {page: renewed((here / page).read_text(), unchecked) for page in PAGES} | documents()
    stale = [name for name, text in wanted.items() if not (here / name).exists() or (here / name).read_text() != text]
    if "--check" not in args:
        for name in stale:
            (here / name).write_text(wanted[name])
    print(f"{'stale' if '--check' in args else 'rewrote'}: {', '.join(stale) or 'nothing'}")
    return 1 if stale and "--check" in args else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
