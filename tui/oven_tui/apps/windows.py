"""Opens the monitor's windows one after another: the list of runs, one run, an overlay, or the player. A window's own
modules are imported when it opens, so that the first window opens fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import App

from oven_runs.access.local_run import LocalRun
from oven_runs.access.run_access import RunAccess
from oven_runs.access.run_finder import local_folder
from oven_runs.home.run_folder import Home
from oven_tui.app import MonitorApp
from oven_tui.appearance import Appearance
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.header import RunFacts

if TYPE_CHECKING:
    from oven_runs.home.run_rows import RunRows
    from oven_tui.apps.runs_app import RemoteRunRow, RunSelection


@dataclass
class Windows:
    """Opens windows in sequence. The user can go from a run to the list of runs, and from there to other runs."""

    accesses: Sequence[RunAccess]
    """The runs to show first. If empty, the list of runs opens first."""
    home: Path | None
    appearance: Appearance
    speed: float = 1.0
    """The speed of a replayed run."""
    control: bool = False
    """Whether to enable the commands that act on the run, if the user's key permits them."""
    only_one: bool = False
    """Whether only one window can open. In a browser, Textual supports one application per process."""
    last_view: MonitorView | None = None
    """The view of the last run that was shown, or None if there was none."""
    return_code: int = 0
    _app: App[Any] | None = None
    _is_over: bool = False
    _rows: RunRows | None = None
    _remote_row: RemoteRunRow | None = None
    _cursor: str = ""
    _marked: Sequence[str] = ()

    def exit(self) -> None:
        """Close the open window, and do not open another."""
        self._is_over = True
        if self._app is not None:
            self._app.exit()

    async def run(self, *, play: bool = False) -> None:
        """Run until the user has closed all windows. Raises ConfigError if `play` names a run on another machine."""
        wants_list = not self.accesses or await self._open(self.accesses, play)
        while wants_list and not self._is_over:
            choice = await self._choose_runs()
            if choice is None:
                return
            await self._open([self._find_access(run) for run in choice.runs], choice.play)

    async def _open(self, accesses: Sequence[RunAccess], play: bool) -> bool:
        """Show the runs until they are closed. Return whether the user wants the list."""
        self.last_view = None
        if len(accesses) > 1:
            from oven_tui.apps.overlay_app import OverlayApp

            await self._show(OverlayApp(accesses, appearance=self.appearance))
            return False
        access = accesses[0]
        self._cursor = access.run
        info = access.info()
        facts = RunFacts(access.run, info.recipe, info.start, info.drill)
        if play:
            from oven_tui.apps.play_app import PlayApp

            folder = local_folder(access, "replaying a run")
            app: MonitorApp = PlayApp(facts, folder, appearance=self.appearance, speed=self.speed)
        else:
            app = MonitorApp(facts, access, control=self.control, appearance=self.appearance)
        await self._show(app)
        self.last_view = app.view
        if not isinstance(access, LocalRun):
            from oven_tui.apps.runs_app import RemoteRunRow

            self._remote_row = RemoteRunRow(access, app.view)
        return app.wants_runs

    async def _choose_runs(self) -> RunSelection | None:
        from oven_runs.home.run_rows import RunRows
        from oven_tui.apps.runs_app import RunsApp

        self._rows = self._rows or RunRows(self._find_home())
        app = RunsApp(
            self._rows,
            remote_row=self._remote_row,
            appearance=self.appearance,
            cursor=self._cursor,
            marked=self._marked,
        )
        choice: RunSelection | None = await self._show(app)
        self._marked = choice.marked if choice is not None else ()
        return choice

    async def _show(self, app: App[Any]) -> Any:
        self._app = app
        result = await app.run_async()
        self._app = None
        self.return_code = app.return_code or 0
        self._is_over = self._is_over or self.only_one or bool(self.return_code)
        return result

    def _find_home(self) -> Home:
        local_run = next((access for access in self.accesses if isinstance(access, LocalRun)), None)
        if self.home is not None or local_run is None:
            return Home(self.home)
        return Home(local_run.folder.path.parent.parent)

    def _find_access(self, run: str) -> RunAccess:
        """Return a run from the command line or from the list. Raises UnknownNameError."""
        named = next((access for access in self.accesses if access.run == run), None)
        return named or LocalRun(self._find_home().find(run))
