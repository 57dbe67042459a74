"""The `creds` commands: manage keys for agents and people on other machines, and for a run on the user's own server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import Json, RunName, SameRun, one_run, print_result
from oven_controller.stack.agent_keys import admit, revoke_in_folder, server_folder
from oven_controller.stack.agent_keys import revoke as revoke_agent
from oven_controller.stack.person_keys import SUFFIX, AdministeredServer, announce, grant, is_person
from oven_controller.stack.plan import Plan, export_lines
from oven_core import plugins
from oven_core.errors import ConfigError, reason
from oven_core.protocol import names
from oven_core.protocol.operator_messages import OperatorKey
from oven_core.protocol.permissions import Role
from oven_core.security import tls
from oven_core.security.person_file import PersonRole
from oven_core.security.tls import Certificate
from oven_runs.access.run_access import warn
from oven_runs.home.run_folder import Home
from oven_runs.server.cluster import ROUTE_OFFSET, Node, write_confs
from oven_runs.server.embedded import ServerFolder

RELOAD = "nats-server --signal reload=PID"
"""The command that makes the user's own server reload its users."""

ServerAt = Annotated[Path | None, typer.Option("--server", help="A folder that `creds server` made, instead of a run.")]
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
Members = Annotated[
    list[str] | None, typer.Option("--member", metavar="NAME", help="Name of a remote judge; repeatable.")
]


def add(
    name: Annotated[
        str,
        typer.Argument(
            help="The name of an agent, under which alone it may vote, or of a person, for the log.",
            autocompletion=completion.installed_agents,
        ),
    ],
    run: RunName = None,
    run_: SameRun = None,
    completions: Annotated[
        bool | None, typer.Option(help="Whether the agent may read sampled texts.", show_default="as before, or not")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="A person's key, to command and watch from any machine.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="A person's key, to watch only.")] = False,
    server: ServerAt = None,
    nats: Annotated[str, typer.Option(help="The server's address for the person.", show_default="the run's")] = "",
    tls_ca: Annotated[
        Path | None, typer.Option(help="The certificate authority that they trust.", show_default="the server's")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The person's file to write.", show_default="NAME.oven in creds/")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key for a run. For an agent, print the environment that its process needs; for a person, write one file.

    Example: oven-controller creds add scout --run grpo-1121-0231

    Example: oven-controller creds add ada --operator --out ada.oven
    """
    if operator and read_only:
        raise ConfigError("--operator and --read-only exclude each other: give one of them")
    if operator or read_only:
        power: PersonRole = "operator" if operator else "monitor"
        _hand_out(name, power, one_run(run, run_), server, nats, tls_ca, out, as_json)
        return
    if server or nats or tls_ca or out:
        raise ConfigError(
            "--server, --nats, --tls-ca and --out are for a person's key: add --operator or --read-only; `creds server "
            "--agent NAME` makes an agent's key for your own server"
        )
    folder = Home().find(one_run(run, run_))
    admit(folder, name, completions=completions)
    environment = Plan(folder, folder.info().url).environment("agent", name)
    print_result(as_json, environment, export_lines(environment))


def _hand_out(
    name: str,
    power: PersonRole,
    run: str | None,
    server: Path | None,
    url: str,
    tls_ca: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Make a person's key, write its file, and print how to use it. Raises OvenError."""
    site = AdministeredServer.of_server(server) if server is not None else AdministeredServer.of_run(Home().find(run))
    for address in tls.checked_addresses(url or site.url) if url or site.url else []:
        if warning := tls.plaintext_warning(address):
            warn(warning)
    if not url and not site.url:
        raise ConfigError(f"the address of the server of {site.server.run!r} is unknown here: give it with --nats URL")
    person_file, untold = grant(site, name, power, url=url, ca=tls_ca)
    if untold:
        warn(untold)
    path = out or site.server.creds / f"{name}{SUFFIX}"
    try:
        person_file.save(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({reason(error)}); name another file with --out") from error
    address, allowed = tls.redact(person_file.url), "command and watch" if power == "operator" else "watch"
    fields = {"name": name, "role": power, "run": person_file.run, "url": address, "file": str(path)}
    lines = [
        f"{name} may {allowed} run {person_file.run} at {address}, from any machine that has this file:",
        str(path),
        f"there: oven-controller monitor --creds {path.name}",
    ]
    if not site.embedded:
        fields["then"] = RELOAD
        lines.append(f"the server admits {name} once it has reloaded its configuration: {RELOAD}")
    print_result(as_json, fields, lines)


def revoke(
    name: Annotated[
        str, typer.Argument(help="An agent, a committee member or a person.", autocompletion=completion.agents)
    ],
    run: RunName = None,
    run_: SameRun = None,
    server: ServerAt = None,
    as_json: Json = False,
) -> None:
    """Revoke a key: close its connections at once and remove its file. `creds add` makes a new one.

    Example: oven-controller creds revoke scout --run grpo-1121-0231
    """
    if server is not None:
        site = AdministeredServer.of_server(server)
        revoke_in_folder(site.server, name)
        run = site.server.run
    else:
        folder = Home().find(one_run(run, run_))
        gives_commands = is_person(folder.server, name)
        revoke_agent(folder, name)
        run = folder.run
        if gives_commands:
            untold = announce(AdministeredServer.of_run(folder), OperatorKey(name=name))  # without a key: it ends
            if untold:
                warn(untold)
    lines = [f"the key of {name} is no longer one of {run}'s"]
    if server is not None:
        lines.append(f"the server accepts it until it reloads its configuration: {RELOAD}")
    print_result(as_json, {"revoked": name, "run": run} | ({"then": RELOAD} if server is not None else {}), lines)


def list_keys(run: RunName = None, run_: SameRun = None, server: ServerAt = None, as_json: Json = False) -> None:
    """List the keys of a run: names, roles and public keys, no secrets.

    Example: oven-controller creds list --json
    """
    if server is not None:
        users_of = server_folder(server)
    else:
        folder = Home().find(one_run(run, run_))
        if not folder.info().embedded:
            raise ConfigError(
                f"the keys for {folder.info().url} are on its server's machine: use --server FOLDER there"
            )
        users_of = folder.server
    print_result(
        as_json, users_of.users(), (f"{user.name:<20} {user.role:<9} {user.public}" for user in users_of.users())
    )


def server(
    folder: Annotated[Path, typer.Argument(help="Folder for nats.conf and creds/; existing keys stay.")],
    run: Annotated[
        str, typer.Option("--run", "-r", metavar="RUN", help="Run name; the keys are valid for this run only.")
    ],
    agents: Agents = None,
    members: Members = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the server.")] = "127.0.0.1:4222",
    store: Annotated[Path | None, typer.Option(help="Folder for the log.", show_default="in FOLDER")] = None,
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address that answers /healthz.")] = "",
    with_tls: Annotated[bool, typer.Option("--tls", help="Make an authority and a certificate for --host.")] = False,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address of the server; repeatable.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Your own certificate (PEM), instead of --tls.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of --tls-cert.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="The authority that signed --tls-cert.", show_default="a public one")
    ] = None,
) -> None:
    """Write a configuration for your own nats-server, with the keys of all parts of one run.

    Example: oven-controller creds server bus/ --run tuned-1 --listen 0.0.0.0:4222 --tls --host bus.example
    """
    names.checked("run", run)
    host, port = _host_and_port("--listen", listen)
    site = ServerFolder(folder.absolute(), run)
    try:
        for role in get_args(Role):
            if role not in ("agent", "member"):
                site.add_user(role, role)
        for name in plugins.find_plugins("agents") if agents is None else agents:
            site.add_user("agent", names.checked("agent", name))
        for name in members or ():
            site.add_user("member", names.checked("member", name))
        own = tls_cert, tls_key, tls_ca
        made = _new_certificate(site.folder / "tls", host, hosts or (), own) if with_tls else None
        certificate, authority = made or _own_certificate(*own, hosts or ())
        site.write_conf(port, host, store, http, certificate)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror} ({error.filename})") from error
    address = f"{hosts[0]}:{port}" if hosts else listen
    url = f"{'tls' if certificate else 'nats'}://{address}"
    trusting = f" --tls-ca {authority}" if authority else ""
    if warning := "" if certificate else tls.plaintext_warning(url):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"nats-server -c {site.conf}")
    print(f"oven-controller up --nats {url} --creds {site.creds}{trusting} --run {run}")


def _host_and_port(option: str, text: str, last_port: int = 65535) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 1 <= int(port) <= last_port or not (host or text.startswith(":")):
        raise ConfigError(f"{option} {text} is not HOST:PORT with a port up to {last_port}, e.g. 0.0.0.0:4222")
    return host, int(port)


def _new_certificate(
    folder: Path, listen: str, hosts: Sequence[str], own: tuple[Path | None, ...]
) -> tuple[Certificate, Path]:
    if any(own):
        raise ConfigError("--tls makes a certificate and --tls-cert names your own: give one of them")
    if not hosts and listen in ("", "0.0.0.0", "::", "[::]"):
        raise ConfigError(
            f"a certificate needs a name, and {listen or 'no host'} is not one; add --host NAME, as clients write it"
        )
    from oven_core.security import certificates  # it needs an extra

    return certificates.create_certificate(folder, hosts or [listen.strip("[]")])


def _own_certificate(
    certificate: Path | None, key: Path | None, authority: Path | None, hosts: Sequence[str]
) -> tuple[Certificate | None, Path | None]:
    if certificate is None and key is None:
        if authority is not None or hosts:
            raise ConfigError("--host and --tls-ca need a certificate: add --tls, or --tls-cert and --tls-key")
        return None, None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key belong together: give both")
    for path in filter(None, (certificate, key, authority)):
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
    if key.stat().st_mode & 0o077:
        raise ConfigError(f"others may read {key}; run `chmod 600 {key}`")
    return Certificate(certificate.absolute(), key.absolute()), authority.absolute() if authority else None


def cluster(
    folder: Annotated[
        Path, typer.Argument(help="A folder that `creds server` made; its users and limits apply to every node.")
    ],
    nodes: Annotated[
        list[str], typer.Option("--node", metavar="HOST:PORT", help="Address of a server for clients; repeatable.")
    ],
) -> None:
    """Write configurations for a cluster of three or five nats-servers (node-1/ and so on) from that of `creds server`.

    Example: oven-controller creds cluster bus/ --node a:4222 --node b:4222 --node c:4222
    """
    addresses = [_host_and_port("--node", text, 65535 - ROUTE_OFFSET) for text in nodes]
    cluster_nodes = [Node(host, port, port + ROUTE_OFFSET) for host, port in addresses]
    site = ServerFolder(folder.absolute(), "")
    for conf in write_confs(site, cluster_nodes):
        print(f"nats-server -c {conf}")
    scheme = "tls" if "tls" in site.read_conf() else "nats"
    urls = ",".join(f"{scheme}://{text}" for text in nodes)
    print(f"oven-controller up --nats {urls} --creds {site.creds} --set stream_replicas={min(len(nodes), 3)} --run RUN")
