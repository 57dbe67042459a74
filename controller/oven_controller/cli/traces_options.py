"""Options that several `traces` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[Path, typer.Argument(metavar="FILE", help="Traces in any known format: a file or a folder.")]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="FORMAT", help="Format of the file.", show_default="recognised by its first line"),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip lines that hold no trace.")]
Replies = Annotated[Path, typer.Argument(metavar="REPLIES", help="Teachers' replies, as `traces replay` writes them.")]
