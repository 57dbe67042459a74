"""Command-line options for a file of traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Source = Annotated[Path, typer.Argument(metavar="FILE", help="Traces in any known format: a file or a folder.")]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="FORMAT", help="Format of the file.", show_default="recognised by its first line"),
]
