"""`creds`: keys for agents and persons on other machines, or for a whole run on an external server."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import Json, RunOption

if TYPE_CHECKING:
    from oven_core.security.certificates import Certificate
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


ServerAt = Annotated[
    Path | None, typer.Option("--server", help="The folder that `creds server` made, instead of a run.")
]

Agents = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        metavar="NAME",
        help="Name of an agent; repeatable.",
        show_default="all that are installed",
        autocompletion=completion.installed_agents,
    ),
]
Members = Annotated[list[str] | None, typer.Option("--member", metavar="NAME", help="Remote judge; repeat it.")]


def add(
    name: Annotated[
        str,
        typer.Argument(
            help="The agent's name, the only one under which it may vote; or a person's, as the log has it.",
            autocompletion=completion.installed_agents,
        ),
    ],
    run: RunOption = None,
    completions: Annotated[
        bool | None,
        typer.Option(
            help="Of an agent: whether it may read sampled prompts and completions.",
            show_default="as before, at first not",
        ),
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="A person's key, which commands and watches from any machine.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="A person's key, which only watches.")] = False,
    server: ServerAt = None,
    nats: Annotated[
        str,
        typer.Option(metavar="URL", help="Where the person reaches the server.", show_default="as the run does"),
    ] = "",
    tls_ca: Annotated[
        Path | None, typer.Option("--tls-ca", help="The authority they trust.", show_default="the run's, or tls/ca.pem")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A person's file.", show_default="NAME.oven in creds/")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key for a run. Of an agent it prints the environment that its process needs; a person gets one file.

    Example: oven-controller creds add scout --run grpo-1121-0231

    Example: oven-controller creds add ada --operator --out ada.oven
    """
    from oven_controller.cli.creds import hand_out
    from oven_controller.stack.agent_keys import admit
    from oven_controller.stack.plan import Plan, export_lines
    from oven_core.errors import ConfigError
    from oven_runs.home.run_folder import Home

    if operator and read_only:
        raise ConfigError("--operator commands and --read-only does not: give one of the two")
    if operator or read_only:
        power: Power = "operator" if operator else "monitor"
        hand_out(name, power, run=run, server=server, url=nats, tls_ca=tls_ca, out=out, as_json=as_json)
        return
    if server or nats or tls_ca or out:
        raise ConfigError(
            "--server, --nats, --tls-ca and --out are of a person's key: add --operator or --read-only; `creds server "
            "--agent NAME` makes an agent's key for your own server"
        )
    folder = Home().find(run)
    admit(folder, name, completions=completions)
    environment = Plan(folder, folder.info().url).environment("agent", name)
    print(json.dumps(environment) if as_json else "\n".join(export_lines(environment)))


def revoke(
    name: Annotated[
        str, typer.Argument(help="An agent, a committee member or a person.", autocompletion=completion.agents)
    ],
    run: RunOption = None,
    server: ServerAt = None,
    as_json: Json = False,
) -> None:
    """Take a key back: its connections are closed at once, and its file is removed. `creds add` makes a new one.

    Example: oven-controller creds revoke scout --run grpo-1121-0231
    """
    from oven_controller.cli.creds import RELOAD
    from oven_controller.stack import agent_keys, person_keys
    from oven_runs.access.run_access import warn
    from oven_runs.home.run_folder import Home

    todo = ""
    if server is not None:
        place = person_keys.Place.of_server(server)
        agent_keys.revoke_there(place.server, name)
        run, todo = place.server.run, RELOAD
    else:
        folder = Home().find(run)
        commands = person_keys.is_person(folder.server, name)
        agent_keys.revoke(folder, name)
        run = folder.run
        if commands:
            untold = person_keys.take_back(person_keys.Place.of_run(folder), name)
            if untold:
                warn(untold)
    if as_json:
        print(json.dumps({"revoked": name, "run": run} | ({"then": todo} if todo else {})))
    else:
        print(f"the key of {name} is no longer one of {run}'s")
        if todo:
            print(f"the server continues taking it until it reads its configuration again: {todo}")


def list_keys(run: RunOption = None, server: ServerAt = None, as_json: Json = False) -> None:
    """List who may connect: names, roles and public keys, never a secret.

    Example: oven-controller creds list --json
    """
    from oven_controller.stack.agent_keys import server_folder
    from oven_core.errors import ConfigError
    from oven_runs.home.run_folder import Home

    if server is not None:
        held = server_folder(server)
    else:
        folder = Home().find(run)
        if not folder.info().embedded:
            raise ConfigError(f"the keys for {folder.info().url} are where its server is: --server FOLDER there")
        held = folder.server
    if as_json:
        print(json.dumps([user.model_dump() for user in held.users()]))
    else:
        for user in held.users():
            print(f"{user.name:<20} {user.role:<9} {user.public}")


def server(
    folder: Annotated[Path, typer.Argument(help="Where nats.conf and creds/ go; keys that are there stay.")],
    run: Annotated[
        str, typer.Option("--run", "-r", metavar="RUN", help="Run name; each key is for subjects of this run alone.")
    ],
    agents: Agents = None,
    members: Members = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the server is reached.")] = "127.0.0.1:4222",
    store: Annotated[Path | None, typer.Option(help="Where it keeps the log; else in the folder.")] = None,
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where it answers /healthz; else nowhere.")] = "",
    with_tls: Annotated[bool, typer.Option("--tls", help="Make an authority and a certificate for --host.")] = False,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="A name or address of the server; repeat it.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Your own certificate, PEM, in the place of --tls.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="The authority that signed it; none: a public one.")] = None,
) -> None:
    """Make a configuration for your own nats-server, and the keys of all who take part in one run on it.

    Example: oven-controller creds server bus/ --run tuned-1 --listen 0.0.0.0:4222 --tls --host bus.example
    """
    from typing import get_args

    from oven_core import plugins
    from oven_core.errors import ConfigError
    from oven_core.protocol import names
    from oven_core.protocol.permissions import Role
    from oven_core.security import tls
    from oven_runs.server.embedded import ServerFolder

    names.checked("run", run)
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"--listen {listen} is not HOST:PORT; write e.g. --listen 0.0.0.0:4222")
    made = ServerFolder(folder.absolute(), run)
    try:
        for role in get_args(Role):
            if role not in ("agent", "member"):
                made.add_user(role, role)
        for name in plugins.points("agents") if agents is None else agents:
            made.add_user("agent", names.checked("agent", name))
        for name in members or ():
            made.add_user("member", names.checked("member", name))
        certificate: Certificate | None
        authority: Path | None
        if with_tls:
            certificate, authority = _certificate(made.folder / "tls", host, hosts or (), (tls_cert, tls_key, tls_ca))
        else:
            certificate, authority = _given(tls_cert, tls_key, tls_ca, hosts or ())
        made.write_conf(int(port), host, store, http, certificate)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror} ({error.filename})") from error
    reached = f"{hosts[0]}:{port}" if hosts else listen
    url = f"{'tls' if certificate else 'nats'}://{reached}"
    trusting = f" --tls-ca {authority}" if authority else ""
    if warning := "" if certificate else tls.open_to_readers(url):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"nats-server -c {made.conf}")
    print(f"oven-controller up --nats {url} --creds {made.creds}{trusting} --run {run}")


def _certificate(
    folder: Path, listen: str, hosts: Sequence[str], own: tuple[Path | None, ...]
) -> tuple[Certificate, Path]:
    from oven_core.errors import ConfigError
    from oven_core.security import certificates

    if any(own):
        raise ConfigError("--tls makes a certificate, --tls-cert brings one: give one of the two")
    if not hosts and listen in ("", "0.0.0.0", "::", "[::]"):
        raise ConfigError(
            f"a certificate is for names, and {listen or 'no host'} is none; add --host NAME, as clients write it"
        )
    return certificates.make(folder, hosts or [listen.strip("[]")])


def _given(
    certificate: Path | None, key: Path | None, authority: Path | None, hosts: Sequence[str]
) -> tuple[Certificate | None, Path | None]:
    from oven_core.errors import ConfigError
    from oven_core.security.certificates import Certificate

    if certificate is None and key is None:
        if authority is not None or hosts:
            raise ConfigError(
                "--host and --tls-ca say something of a certificate: add --tls, or --tls-cert and --tls-key"
            )
        return None, None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key belong together: give both")
    for path in filter(None, (certificate, key, authority)):
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
    if key.stat().st_mode & 0o077:
        raise ConfigError(f"others may read {key}; `chmod 600 {key}` mends it")
    return Certificate(certificate.absolute(), key.absolute()), authority.absolute() if authority else None


def cluster(
    folder: Annotated[Path, typer.Argument(help="What `creds server` made; its users and limits hold on every node.")],
    nodes: Annotated[list[str], typer.Option("--node", metavar="HOST:PORT", help="A server, as clients reach it.")],
) -> None:
    """Make the configurations of a cluster of three or five nats-servers, node-1/ and so on, from `creds server`'s.

    Example: oven-controller creds cluster bus/ --node a:4222 --node b:4222 --node c:4222
    """
    from oven_core.errors import ConfigError
    from oven_runs.server.cluster import ROUTE_OFFSET, Node, write_confs
    from oven_runs.server.embedded import ServerFolder

    found = []
    for text in nodes:
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdigit() or not 1 <= int(port) <= 65535 - ROUTE_OFFSET:
            raise ConfigError(f"--node {text} is not HOST:PORT with a port up to {65535 - ROUTE_OFFSET}")
        found.append(Node(host, int(port), int(port) + ROUTE_OFFSET))
    made = ServerFolder(folder.absolute(), "")
    for conf in write_confs(made, found):
        print(f"nats-server -c {conf}")
    scheme = "tls" if '"tls"' in made.conf.read_text() else "nats"
    urls = ",".join(f"{scheme}://{text}" for text in nodes)
    print(f"oven-controller up --nats {urls} --creds {made.creds} --set stream_replicas={min(len(found), 3)} --run RUN")
