"""`creds add NAME --operator` and `--read-only`: a person's key, handed out as one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oven_core.security.person_file import Power

RELOAD = "nats-server --signal reload=PID"


def hand_out(
    name: str,
    power: Power,
    *,
    run: str | None,
    server: Path | None,
    url: str,
    tls_ca: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Make the key, write its file, and print what its holder does with it. Raises OvenError."""
    from oven_controller.stack.person_keys import SUFFIX, Place, grant
    from oven_core.errors import ConfigError, reason
    from oven_core.security import tls
    from oven_core.terminal_text import say
    from oven_runs.access.run_access import warn
    from oven_runs.home.run_folder import Home

    place = Place.of_server(server) if server is not None else Place.of_run(Home().find(run))
    for address in tls.checked_addresses(url or place.url) if url or place.url else []:
        if warning := tls.open_to_readers(address):
            warn(warning)
    if not url and not place.url:
        raise ConfigError(
            f"how is the server of {place.server.run!r} reached from elsewhere? give its address: --nats URL"
        )
    made, untold = grant(place, name, power, url=url, ca=tls_ca)
    if untold:
        warn(untold)
    path = out or place.server.creds / f"{name}{SUFFIX}"
    try:
        made.save(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({reason(error)}); name another file with --out") from error
    then = "" if place.embedded else RELOAD
    if as_json:
        held = {"name": name, "role": power, "run": made.run, "url": tls.shown(made.url), "file": str(path)}
        print(json.dumps(held | ({"then": then} if then else {})))
        return
    may = "command and watch" if power == "operator" else "watch"
    say(f"{name} may {may} run {made.run} at {tls.shown(made.url)}, from any machine that has this file:")
    say(str(path))
    say(f"there: oven-controller monitor --creds {path.name}")
    if then:
        say(f"the server lets {name} in once it has read its configuration again: {then}")
