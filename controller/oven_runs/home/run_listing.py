"""The list of runs as run.json has them, as `runs --json` prints it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from oven_core.security import tls
from oven_runs.home.run_folder import Home


class ListedRun(BaseModel):
    """What run.json says of a run, and whether it is up."""

    model_config = ConfigDict(frozen=True)

    run: str
    status: str = Field(description="running, completed, stopped, failed or interrupted")
    recipe: str
    start: str
    drill: str = Field(description="what was staged on purpose, if this run is a drill")
    created: str = Field(description="RFC 3339, UTC")
    url: str
    folder: str


def listed_runs(home: Home) -> list[ListedRun]:
    """Every run of the home, the newest first."""
    rows = []
    for folder in home.runs():
        info = folder.info()
        rows.append(
            ListedRun(
                run=folder.run,
                status=folder.status(),
                recipe=info.recipe,
                start=info.start,
                drill=info.drill,
                created=info.created,
                url=tls.shown(info.url),
                folder=str(folder.path),
            )
        )
    return rows
