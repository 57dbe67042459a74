"""`creds`: keys for those who take part from elsewhere, or for all of a run on a server of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Agents = Annotated[list[str] | None, typer.Option("--agent", metavar="NAME", help="Repeat it; else all installed.")]
Members = Annotated[list[str] | None, typer.Option("--member", metavar="NAME", help="Remote judge; repeat it.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Keys for agents from elsewhere, and for a server of your own.")
    group.command("add")(add)
    group.command("server")(server)
    app.add_typer(group, name="creds")


def add(
    name: Annotated[str, typer.Argument(help="The agent's name; only under it may it vote.")],
    run: Annotated[str | None, typer.Option(help="The run; the running one, else the newest, if left out.")] = None,
) -> None:
    """Make an agent's key for a run, and print the environment that its process needs.

    Example: oven-controller creds add scout --run grpo-1121-0231
    """
    from oven_controller.home import Home
    from oven_controller.stack.admit import admit
    from oven_controller.stack.plan import Plan, export_lines

    folder = Home().find(run)
    admit(folder, name)
    for line in export_lines(Plan(folder, folder.info().url).environment("agent", name)):
        print(line)


def server(
    folder: Annotated[Path, typer.Argument(help="Where nats.conf and creds/ go; keys that are there stay.")],
    run: Annotated[str, typer.Option(help="The run; its name is part of what each key may do.")],
    agents: Agents = None,
    members: Members = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server is reached.")] = "127.0.0.1:4222",
    store: Annotated[Path | None, typer.Option(help="Where it keeps the log; else in the folder.")] = None,
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where it answers /healthz; else nowhere.")] = "",
) -> None:
    """Make a configuration for a nats-server of your own, and the keys of all who take part in one run on it.

    Example: oven-controller creds server bus/ --run tuned-1 --listen 0.0.0.0:4222
    """
    from typing import get_args

    from oven_controller import names
    from oven_controller.credentials import Role
    from oven_controller.errors import ConfigError
    from oven_controller.server import ServerFolder
    from oven_controller.stack import plugins

    names.checked("run", run)
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"--listen {listen} is no HOST:PORT; write e.g. --listen 0.0.0.0:4222")
    made = ServerFolder(folder.absolute(), run)
    try:
        for role in get_args(Role):
            if role not in ("agent", "member"):
                made.add_user(role, role)
        for name in plugins.points("agents") if agents is None else agents:
            made.add_user("agent", names.checked("agent", name))
        for name in members or ():
            made.add_user("member", names.checked("member", name))
        made.write_conf(int(port), host, store, http)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror} ({error.filename})") from error
    print(f"nats-server -c {made.conf}")
    print(f"oven-controller up --nats nats://{listen} --creds {made.creds} --run {run}")
