"""Makes the pictures of the monitor from recorded runs: `python docs/pictures.py RUN_FOLDER`.

`docs/monitor.svg` is the board in the middle of the run, `docs/ballot.svg` a decision in full, and `docs/drill.svg` the
run from its start to its end, as an animation in CSS. The README's run is `oven-controller up --headless --seed 1`.
Braille is drawn as dots, since few fonts that a browser falls back to have it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.pilot import Pilot

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Observation
from oven_runs.access.log_sources import exported_events
from oven_runs.home.run_folder import RunFolder
from oven_tui.app import MonitorApp
from oven_tui.widgets.decision_list import DecisionList
from oven_tui.widgets.header import RunFacts

CELL, LINE = 8, 16
"""Pixels of a cell."""
BASE, INK = "#121212", "#e0e0e0"
SIZE: Final = (116, 34)
TALL: Final = (116, 62)
"""Cells of the board, and of a decision in full."""
FRAME_S, LAST_S = 0.4, 4.0
"""Seconds of a frame, and of each of the last two, which show a decision."""
TICKS_A_FRAME: Final = 5
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
DOCS: Final = Path(__file__).parent
LIMIT_BYTES: Final = 1_500_000
"""A README is read over slow lines, too."""

Row = tuple[Segment, ...]
Frame = list[Row]


@dataclass
class Palette:
    """Styles as classes, each written once."""

    classes: dict[str, str] = field(default_factory=dict)

    def of(self, rule: str) -> str:
        return self.classes.setdefault(rule, f"c{len(self.classes)}")

    def css(self) -> str:
        return "".join(f".{name}{{{rule}}}" for rule, name in self.classes.items())


def drawn(row: Row, y: int, palette: Palette) -> str:
    """One row of the terminal as SVG."""
    x, parts = 0, []
    top = y * LINE
    for segment in row:
        width = cell_len(segment.text)
        ink, back, bold = _colours(segment.style)
        if back != BASE and width:
            rule = palette.of(f"fill:{back}")
            parts.append(f'<path class="{rule}" d="M{x * CELL} {top}h{width * CELL}v{LINE}h-{width * CELL}z"/>')
        for start, text in _words(segment.text):
            left = (x + start) * CELL
            if text[0] in _BRAILLE:
                dots = "".join(_dots(char, left + at * CELL, top) for at, char in enumerate(text))
                parts.append(f'<path class="{palette.of(f"stroke:{ink}")}" d="{dots}"/>')
            else:
                rule = palette.of(f"fill:{ink};font-weight:bold" if bold else f"fill:{ink}")
                long = cell_len(text) * CELL
                parts.append(
                    f'<text class="{rule}" x="{left}" y="{top + 12}" textLength="{long}">{escape(text)}</text>'
                )
        x += width
    return "".join(parts)


_BRAILLE = frozenset(chr(0x2800 + dots) for dots in range(256))


def _words(text: str) -> Iterator[tuple[int, str]]:
    """(cell, piece): the text without its blanks, braille apart from letters."""
    at, start, piece = 0, 0, ""
    for char in text:
        blank = char in " \u2800"
        if piece and (blank or (char in _BRAILLE) != (piece[-1] in _BRAILLE)):
            yield start, piece
            piece = ""
        if not blank:
            start, piece = (at, char) if not piece else (start, piece + char)
        at += cell_len(char)
    if piece:
        yield start, piece


def _dots(char: str, left: int, top: int) -> str:
    bits = ord(char) - 0x2800
    return "".join(
        f"M{left + 1 + 4 * column} {top + 2 + 4 * row}h2"
        for column in (0, 1)
        for row in range(4)
        if bits & DOTS[column][row]
    )


def _colours(style: Style | None) -> tuple[str, str, bool]:
    if style is None:
        return INK, BASE, False
    ink = style.color.get_truecolor().hex if style.color is not None and not style.color.is_default else INK
    back = style.bgcolor.get_truecolor().hex if style.bgcolor is not None and not style.bgcolor.is_default else BASE
    return (back, ink, bool(style.bold)) if style.reverse else (ink, back, bool(style.bold))


def svg(body: str, palette: Palette, css: str, width: int, height: int) -> str:
    font = "ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * CELL} {height * LINE}">'
        f"<style>text{{font:13px {font};white-space:pre}}path{{stroke-width:2}}{palette.css()}{css}</style>"
        f'<rect width="100%" height="100%" fill="{BASE}"/>{body}</svg>\n'
    )


def still(frame: Frame, size: tuple[int, int]) -> str:
    palette = Palette()
    return svg("".join(drawn(row, y, palette) for y, row in enumerate(frame)), palette, "", *size)


def moving(frames: Sequence[Frame], seconds: Sequence[float], size: tuple[int, int]) -> str:
    """Each row of the terminal once for as long as it stays the same. Who shows no animation sees the last frame."""
    palette, parts, whole = Palette(), [], sum(seconds)
    at = [0.0]
    for long in seconds:
        at.append(at[-1] + long)
    shown: dict[tuple[int, int], str] = {}
    for y in range(size[1]):
        first = 0
        for number in range(1, len(frames) + 1):
            if number < len(frames) and frames[number][y] == frames[first][y]:
                continue
            body = drawn(frames[first][y], y, palette)
            if body and (first, number) == (0, len(frames)):
                parts.append(body)
            elif body:
                name = shown.setdefault((first, number), f"s{len(shown)}")
                last = " z" if number == len(frames) else ""
                parts.append(f'<g class="a {name}{last}">{body}</g>')
            first = number
    css = f".a{{visibility:hidden;animation:{whole:g}s step-end infinite}}.z{{visibility:visible}}"
    for (first, number), name in shown.items():
        begin, end = 100 * at[first] / whole, 100 * at[number] / whole
        frames_ = "0%{visibility:hidden}" if first else ""
        frames_ += f"{begin:.3f}%{{visibility:visible}}" + (f"{end:.3f}%{{visibility:hidden}}" if end < 100 else "")
        css += f".{name}{{animation-name:{name}}}@keyframes {name}{{{frames_}}}"
    return svg("".join(parts), palette, css, *size)


async def _settled(app: MonitorApp, pilot: Pilot[None]) -> Frame:
    await pilot.pause()
    while not app.screen_stack[0].query("FooterKey"):
        await pilot.pause()
    await pilot.pause()
    return [tuple(strip) for strip in app.screen._compositor.render_strips()]


def _until(events: Sequence[Event], tick: int) -> int:
    """How many events come before the observation after a tick."""
    return next(
        (n for n, event in enumerate(events) if isinstance(event.body, Observation) and event.body.tick > tick),
        len(events),
    )


class _Recorded(MonitorApp):
    """It is given the events, and reads nothing by itself."""

    def __init__(self, folder: RunFolder) -> None:
        info = folder.info()
        super().__init__(RunFacts(folder.run, info.recipe, info.start, info.drill))

    def silent_s(self) -> float:
        return 0.0  # the clock is no part of the picture


async def record(folder: RunFolder) -> None:
    events = list(exported_events(folder))
    last = max(event.body.tick for event in events if isinstance(event.body, Observation))
    decided = [e.body.tick for e in events if isinstance(e.body, Decision) and e.body.verdict == "adopted"]
    stops = sorted({*range(1, last, TICKS_A_FRAME), *decided, *(tick + 1 for tick in decided), last + 1})
    app = _Recorded(folder)
    frames: list[Frame] = []
    taken = 0
    async with app.run_test(size=SIZE) as pilot:
        app.set_link("connected", "")
        for stop in stops:
            upto = _until(events, stop)
            app.add_events(list(events[taken:upto]))
            taken = upto
            app.paint()
            frames.append(await _settled(app, pilot))
        middle = len(frames) * 2 // 3
        (DOCS / "monitor.svg").write_text(still(frames[middle], SIZE))
        app.query_one(DecisionList).focus()
        await pilot.press("g", "j", "enter")
        frames.append(await _settled(app, pilot))
        await pilot.press("pagedown")
        frames.append(await _settled(app, pilot))
        await pilot.press("home")
        await pilot.resize_terminal(*TALL)
        (DOCS / "ballot.svg").write_text(still(await _settled(app, pilot), TALL))
    seconds = [FRAME_S] * (len(frames) - 2) + [LAST_S, LAST_S]
    text = moving(frames, seconds, SIZE)
    if len(text) > LIMIT_BYTES:
        sys.exit(f"the animation has {len(text)} bytes, more than {LIMIT_BYTES}: raise TICKS_A_FRAME")
    (DOCS / "drill.svg").write_text(text)
    print(f"{len(frames)} frames, {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asyncio.run(record(RunFolder(Path(sys.argv[1]))))
