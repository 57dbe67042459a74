"""An HTML page without scripts or external resources, and its style."""

from __future__ import annotations

from pathlib import Path

from oven_core.errors import ConfigError
from oven_core.files import write_atomic

STYLE = """
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #fff; --soft: #6a737d; --line: #d8dee4; --band: #3b6ea8;
  --harm: #c0392b; --alarm: #b7791f; --unknown: #7d5ba6; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e6e6; --bg: #16191d; --soft: #9aa4ae; --line: #343b43;
  --band: #7fb0e6; --harm: #ff7b6b; --alarm: #e8b64c; --unknown: #c3a2ec; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); margin: 2rem auto;
  max-width: 960px; padding: 0 1rem; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.soft { color: var(--soft); } figure { margin: 1rem 0; } figcaption { color: var(--soft); font-size: .9rem; }
svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.grid { stroke: var(--line); } .band { fill: var(--band); stroke: var(--band); stroke-width: 1.2; fill-opacity: .45; }
g.harm line { stroke: var(--harm); } g.alarm line { stroke: var(--alarm); } g.unknown line { stroke: var(--unknown); }
svg g.harm text { fill: var(--harm); } svg g.alarm text { fill: var(--alarm); }
svg g.unknown text { fill: var(--unknown); }
b.harm { color: var(--harm); } b.alarm { color: var(--alarm); } b.unknown { color: var(--unknown); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0; border-top: 1px solid var(--line); }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
"""


def render_page(title: str, heading: str, body: str) -> str:
    """Return a page. All arguments are HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{title}</title><style>{STYLE}</style></head>\n"
        f"<body><h1>{heading}</h1>\n{body}</body></html>\n"
    )


def write_page(file: Path, page: str) -> None:
    """Write the page for the option --html. Raises ConfigError if that fails."""
    try:
        write_atomic(file, page)
    except OSError as error:
        raise ConfigError(f"--html {file} cannot be written: {error.strerror or error}") from error
