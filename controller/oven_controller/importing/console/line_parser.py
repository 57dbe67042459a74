"""Parse a line of console output: its counters, such as `step 10/100`, and its measurements, such as `loss: 0.5`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from oven_runs.metrics.metric_names import direction, held_out

MAX_LENGTH = 20_000
"""Longer lines are not parsed. They are data or generated text."""
_DIGIT = re.compile(r"\d")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""Colours and cursor movements."""
_RAY_PREFIX = re.compile(r"\([^()]*\bpid=\d+[^()]*\)")
_LEVEL = re.compile(r"\b(?:INFO|DEBUG|WARNING|WARN|ERROR)\b")
_LEVEL_HINT = re.compile(r"[OUR][GFN]|RR")
_TIME_HINT = re.compile(r"\d[-/:]\d\d")
_TIME = re.compile(
    r"\b\d{4}[-/]\d\d[-/]\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?Z?)?|\b\d\d/\d\d(?:/\d\d)?(?= \d\d:\d\d)"
    r"|(?:\d+ days?, ?)?(?<![\w.@])\d+:\d\d:\d\d(?:[.,]\d+)?"
)
_PLACE_HINT = re.compile(r"\.[chp][ycpu]*:\d")
_PLACE = re.compile(r"\b[\w./]+\.(?:py|cc|cpp|cu|c|h):\d+\]?")
"""A place in a program, as in `trainer.py:210`."""
_NUMBER = r"[-+]?(?:\d+(?:,\d{3})+(?![\d,])|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?|[-+]?\.\d+(?:[eE][-+]?\d+)?"
_NOT_FINITE = r"[-+]?(?:nan|inf(?:inity)?)(?=m?s\b|[^A-Za-z0-9]|$)"
_WORD = r"[A-Za-z_][\w@./+%-]*(?:'s)?(?:\([\w.%/+-]*\))?"
_PAIR = re.compile(
    rf"(?P<quote>['\"]?)(?<![\w@])(?P<name>{_WORD}(?: {{1,2}}(?:{_WORD}|\(\w+\))){{0,4}}?)(?P=quote)"
    r"(?:\s*(?:[:=]|->)\s*|[ \t]+(?:is |of )?\s*)(?:np\.\w+\(|tensor\(|\[)?['\"]?"
    rf"(?P<value>{_NUMBER}|{_NOT_FINITE})(?:\s*/\s*(?P<whole>\d+(?:\.\d+)?)(?!\w))?"
    r"(?:%|[A-Za-z]{1,3}(?:/[A-Za-z]+)?)?(?![\w/]|\.\w)['\"]?(?:\s*\([^()]*\)|, device=[^)]*\))?",
    re.IGNORECASE | re.ASCII,
)
_PROSE = frozenset((
    *("a", "and", "are", "as", "at", "by", "for", "from", "if", "in", "is", "of", "on", "or", "otherwise", "than"),
    *("the", "to", "was", "were", "with", "within"),
))  # fmt: skip
"""Words before numbers in sentences."""
_SCALE = re.compile(r"\((1e-?\d+)\)$")
"""The unit in a name such as verl's `lr(1e-3)`: values must be multiplied by it."""
_COUNTER = re.compile(
    r"(?<![\w/.-])['\"]?(?P<name>(?:(?:global|training|train|total|current|optimizer|learning|env|num|val|valid|test"
    r"|eval)[ _-]?)?(?:steps?|iterations?|iters?|itr|it|epochs?|ep|updates?|episodes?|batch(?:es)?|timesteps?|rounds?"
    r"|s)|ep\.|up\.)['\"]?(?:\s*\((?:train|val|test|eval)\))?\s*"
    r"(?:[:=#]\s*|(?<=[\w.)])\s+|(?=[\[(]))[\[(<'\"]?\s*(?P<count>\d{1,15}(?:,\d{3})*)"
    r"(?:\s*(?:/|of)\s*\d+(?:,\d{3})*)?(?![\w/]|\.\d|,\d)\s*[\])>'\"]?"
    r"(?:\s*[:,|-]?\s*\[\s*(?P<batch>\d{1,15})\s*/\s*\d+[^\]]*\]|\s*:\s*(?P<batch_after_colon>\d{1,15})\s*/\s*\d+)?",
    re.IGNORECASE | re.ASCII,
)
_BAR = re.compile(
    r"(?:\d+%\|[^|]*\||^)\s*(?P<count>\d{1,15})\s*/\s*\d+"
    r"(?:\s*\[[\d:?]+<[\d:?]+[^\],]*(?:,\s*[\d.?]+\s*\w+/\w+)?|\s|$)"
)
"""A progress bar of tqdm or Keras."""
_NUMBERED = re.compile(r"^\s*(?:\[(?P<bracket>\d{1,15})\]|(?P<plain>\d{1,15})\s*[:|])\s")
"""The step at the beginning of a line, as of XGBoost, LightGBM and CatBoost."""
_LOOP = re.compile(
    r"^\s*(?P<name>train|test|val\w*|eval\w*)\s*:\s*(?:(?P<epoch>\d{1,15})\s*)?\[\s*(?P<count>\d{1,15})\s*/\s*\d+[^\]]*\]",
    re.IGNORECASE | re.ASCII,
)
"""The counters at the beginning of a line of timm, such as `Train: 3 [ 50/1251 (  4%)]`."""
_SCOPE = re.compile(
    r"^\s*\*\s|\bcur metric\b|(?:^|[\[(|\s*#=>-])(?:valid(?:ation)?|val|dev|eval(?:uation|uating)?|test(?:ing)?)"
    r"(?:\s+(?:set|results?|metrics?|epoch))?\s*(?:[\])|:\s>-]|$)",
    re.IGNORECASE | re.ASCII,
)
"""A mark before the measurements that says that they are held out, such as `Test set:`. PyTorch's examples write `*`,
and PaddleOCR writes `cur metric`."""
_BOXED = re.compile(r"^\s*\|\s*(?P<name>[^|]*?\S)\s*\|\s*(?P<value>[^|]*?)\s*\|\s*$")
"""A row of the tables that Stable-Baselines and other RL libraries print."""


@dataclass(slots=True)
class Record:
    """The contents of a line, or of a table of several lines."""

    counters: dict[str, int] = field(default_factory=dict)
    """Values of `step`, `epoch`, `episode`, `timestep` and `batch`."""
    values: dict[str, float] = field(default_factory=dict)
    """The measurements by name."""
    is_transient: bool = False
    """Whether the line was overwritten later, like all but the last state of a progress bar."""


def parse_line(line: str) -> Record:
    """Parse a line. The names of held-out measurements get the prefix `val_` if only the line says that they are."""
    parsed = Record()
    if len(line) > MAX_LENGTH or not _DIGIT.search(line):
        return parsed
    text = _remove_noise(line)
    if "/" in text:
        if "%|" in text or text.lstrip()[:1].isdigit():
            text = _BAR.sub(lambda match: _read_bar(match, parsed), text, count=1)
        text = _LOOP.sub(lambda match: _read_loop(match, parsed), text)
    text = _COUNTER.sub(lambda match: _read_counter(match, parsed), text)
    if "step" not in parsed.counters and (match := _NUMBERED.match(text)):
        parsed.counters["step"] = int(match["bracket"] or match["plain"])
        text = text[match.end() :]
    heading = ""
    for match in _PAIR.finditer(text):
        if not parsed.values:
            heading = text[: match.start()]
        name = match["name"].rstrip("-.")
        if name.rpartition(" ")[2].lower() in _PROSE:
            continue
        value = _to_number(match["value"])
        if match["whole"] and float(match["whole"]):
            value /= float(match["whole"])
        if scale := _SCALE.search(name):
            name, value = name[: scale.start()], value * float(scale[1])
        parsed.values.setdefault(name, value)
    if parsed.values:
        parsed.values = _mark_held_out(parsed.values, heading)
    return parsed


def _mark_held_out(values: dict[str, float], heading: str) -> dict[str, float]:
    """Prefix the names of held-out measurements with `val_`. `heading` is the text before the first measurement."""
    first = next(iter(values))
    is_marked = heading != "" and _SCOPE.search(heading) is not None
    if not is_marked and not (" " in first and held_out(first)):
        return values
    # In `val loss: 0.5 acc: 0.8 lr: 0.1`, the accuracy is held out, too.
    return {
        f"val_{name}"
        if (is_marked or direction(name) != "neither") and not held_out(name) and "train" not in name.lower()
        else name: value
        for name, value in values.items()
    }


def parse_boxed(line: str) -> tuple[str, float | None] | None:
    """Parse a row of a table such as `| ep_rew_mean | 20.5 |`: the name, and the value unless the row is a heading.
    Return None for another line."""
    match = _BOXED.match(line)
    if match is None:
        return None
    try:
        return match["name"], float(match["value"])
    except ValueError:
        return (match["name"], None) if not match["value"] else None


def _remove_noise(line: str) -> str:
    """Remove colours, times, log levels and other things that look like measurements."""
    if "\x1b" in line:
        line = _CONTROL.sub("", line)
    if "pid=" in line:
        line = _RAY_PREFIX.sub(" ", line)
    if _TIME_HINT.search(line):
        line = _TIME.sub(" ", line)
    if _PLACE_HINT.search(line):
        line = _PLACE.sub(" ", line)
    return _LEVEL.sub(" ", line) if _LEVEL_HINT.search(line) else line


def _read_bar(match: re.Match[str], parsed: Record) -> str:
    parsed.counters["batch"] = int(match["count"])
    return " | "


def _read_loop(match: re.Match[str], parsed: Record) -> str:
    if match["epoch"]:
        parsed.counters["epoch"] = int(match["epoch"])
    parsed.counters["batch"] = int(match["count"])
    return f" {match['name']}: "


def _read_counter(match: re.Match[str], parsed: Record) -> str:
    name = match["name"].lower()
    if name == "s" and match.start():
        return match[0]  # seconds
    kind = next((kind for kind in ("epoch", "episode", "batch", "timestep") if kind in name), "step")
    kind = {"ep": "episode", "ep.": "epoch"}.get(name, kind)
    if kind not in parsed.counters or name.startswith("global"):
        parsed.counters[kind] = int(match["count"].replace(",", ""))
    batch = match["batch"] or match["batch_after_colon"]
    if batch:
        parsed.counters.setdefault("batch", int(batch))
    scope = re.search(r"val\w*|test|eval", match[0], re.IGNORECASE)
    return f" | {scope[0]}: " if scope else " | "


def _to_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float(text.replace(",", "").lower().rstrip("ms"))  # thousands separators, or `nanms`
