"""The monitor's windows, one after another: the list of runs, one run, an overlay, a player. Modules that only some
windows need are imported when those open, so that the first paint of a run does not wait for them."""

from __future__ import annotations

from collections.abc import Sequence
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
from oven_tui.widgets.header import About

if TYPE_CHECKING:
    from oven_runs.home.run_rows import RunRows
    from oven_tui.apps.elsewhere import Elsewhere
    from oven_tui.apps.runs_app import Choice


class Windows:
    """Opens what the user asks for. The list of runs leads to a run, and back when that is closed."""

    def __init__(
        self,
        accesses: Sequence[RunAccess],
        home: Path | None,
        appearance: Appearance,
        speed: float = 1.0,
        *,
        control: bool = False,
        only_one: bool = False,
    ) -> None:
        """Without `accesses` the list of the home's runs comes first. `speed` is that of a played run. With `control`
        the user may act, as far as the keys allow. With `only_one` no other window follows the first, as in a browser,
        whose driver supports one app per process."""
        self.last_view: MonitorView | None = None
        """The view of the run that was shown last; None if there was none."""
        self.return_code = 0
        self._accesses = list(accesses)
        self._home, self._appearance, self._speed = home, appearance, speed
        self._control = control
        self._app: App[Any] | None = None
        self._over, self._only_one = False, only_one
        self._rows: RunRows | None = None
        self._elsewhere: Elsewhere | None = None
        self._cursor, self._marked = "", list[str]()

    def exit(self) -> None:
        """Close the open window and open no other."""
        self._over = True
        if self._app is not None:
            self._app.exit()

    async def run(self, *, play: bool = False) -> None:
        """Run until the user has closed all windows. Raises ConfigError for a run on another machine that should be
        played."""
        listed = not self._accesses
        if not listed:
            listed = await self._open(self._accesses, play)
        while listed and not self._over:
            choice = await self._choose()
            if choice is None:
                return
            await self._open([self._access(run) for run in choice.runs], choice.play)

    async def _open(self, accesses: Sequence[RunAccess], play: bool) -> bool:
        """Show the runs until they are closed. Return whether the user wants the list."""
        self.last_view = None
        if len(accesses) > 1:
            from oven_tui.apps.overlay_app import OverlayApp

            overlay = OverlayApp(accesses, appearance=self._appearance)
            await self._show(overlay)
            return False
        access = accesses[0]
        self._cursor = access.run
        info = access.info()
        about = About(access.run, info.recipe, info.start, info.drill)
        if play:
            from oven_tui.apps.play_app import PlayApp

            folder = local_folder(access, "playing a run")
            app: MonitorApp = PlayApp(about, folder, appearance=self._appearance, speed=self._speed)
        else:
            app = MonitorApp(about, access, control=self._control, appearance=self._appearance)
        await self._show(app)
        self.last_view = app.view
        if not isinstance(access, LocalRun):
            from oven_tui.apps.elsewhere import Elsewhere

            self._elsewhere = Elsewhere(access, app.view)
        return app.wants_runs

    async def _choose(self) -> Choice | None:
        from oven_runs.home.run_rows import RunRows
        from oven_tui.apps.runs_app import RunsApp

        self._rows = self._rows or RunRows(self._found_home())
        app = RunsApp(
            self._rows,
            elsewhere=self._elsewhere,
            appearance=self._appearance,
            cursor=self._cursor,
            marked=self._marked,
        )
        choice: Choice | None = await self._show(app)
        self._marked = list(choice.marked) if choice is not None else []
        return choice

    async def _show(self, app: App[Any]) -> Any:
        self._app = app
        result = await app.run_async()
        self._app = None
        self.return_code = app.return_code or 0
        self._over = self._over or self._only_one or bool(self.return_code)
        return result

    def _found_home(self) -> Home:
        first = next((access for access in self._accesses if isinstance(access, LocalRun)), None)
        if self._home is not None or first is None:
            return Home(self._home)
        return Home(first.folder.path.parent.parent)

    def _access(self, run: str) -> RunAccess:
        """Return a run of the list, or of an address. Raises UnknownNameError."""
        elsewhere = next((access for access in self._accesses if access.run == run), None)
        return elsewhere or LocalRun(self._found_home().find(run))
