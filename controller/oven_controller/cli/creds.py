"""The `creds` commands: manage keys for agents and people on other machines, and for a run on the user's own server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import Json, RunAlias, RunName, one_run, print_result
from oven_controller.stack.agent_keys import admit, open_server_folder, revoke_in_folder
from oven_controller.stack.agent_keys import revoke as revoke_agent
from oven_controller.stack.person_keys import SUFFIX, AdministeredServer, announce, grant, is_operator
from oven_controller.stack.process_plan import Plan, export_lines
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
from oven_runs.server.embedded_server import ServerFolder

RELOAD_COMMAND = "nats-server --signal reload=PID"
"""Command that makes the user's own server reload its configuration."""

ServerOption = Annotated[Path | None, typer.Option("--server", help="A folder of `creds server`, instead of a run.")]
Agents = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        metavar="NAME",
        help="Name of an agent; repeatable.",
        show_default="all installed agents",
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
            help="Name of an agent, which may vote only under this name, or of a person, for the log.",
            autocompletion=completion.installed_agents,
        ),
    ],
    run: RunName = None,
    run_: RunAlias = None,
    completions: Annotated[
        bool | None,
        typer.Option(
            help="Whether the agent may read sampled completions.", show_default="unchanged; no for a new key"
        ),
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Make a person's key to control and watch the run from any machine.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Make a person's key to watch the run only.")] = False,
    server: ServerOption = None,
    nats: Annotated[str, typer.Option(help="Server address for the person's file.", show_default="the run's")] = "",
    tls_ca: Annotated[
        Path | None, typer.Option(help="Certificate authority for the person's file.", show_default="the server's")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write for the person.", show_default="NAME.oven in creds/")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a key for a run. For an agent, print the environment of its process. For a person, write one file.

    Example: oven-controller creds add scout --run grpo-1121-0231

    Example: oven-controller creds add ada --operator --out ada.oven
    """
    if operator and read_only:
        raise ConfigError("--operator and --read-only cannot be combined; use only one of them")
    if operator or read_only:
        role: PersonRole = "operator" if operator else "monitor"
        _grant_access(name, role, one_run(run, run_), server, nats, tls_ca, out, as_json)
        return
    if server or nats or tls_ca or out:
        raise ConfigError(
            "--server, --nats, --tls-ca and --out need a person's key; add --operator or --read-only, or use `creds "
            "server --agent NAME` for an agent's key on your own server"
        )
    folder = Home().find(one_run(run, run_))
    admit(folder, name, completions=completions)
    environment = Plan(folder, folder.info().url).environment("agent", name)
    print_result(as_json, environment, export_lines(environment))


def _grant_access(
    name: str,
    role: PersonRole,
    run: str | None,
    server: Path | None,
    url: str,
    tls_ca: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Make a person's key, write its file, and print how to use it. Raises OvenError."""
    target = AdministeredServer.for_folder(server) if server else AdministeredServer.for_run(Home().find(run))
    if not url and not target.url:
        raise ConfigError(f"the server address of run {target.server.run!r} is unknown on this machine; add --nats URL")
    for address in tls.checked_addresses(url or target.url):
        if warning := tls.plaintext_warning(address):
            warn(warning)
    person_file, delivery_failure = grant(target, name, role, url=url, ca=tls_ca)
    if delivery_failure:
        warn(delivery_failure)
    path = out or target.server.creds / f"{name}{SUFFIX}"
    try:
        person_file.save(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path} ({reason(error)}); choose another file with --out") from error
    address = tls.redact(person_file.url)
    permissions = "control and watch" if role == "operator" else "watch"
    fields = {"name": name, "role": role, "run": person_file.run, "url": address, "file": str(path)}
    lines = [
        f"{name} may {permissions} run {person_file.run} at {address}, from any machine that has this file:",
        str(path),
        f"to watch: oven-controller monitor --creds {path.name}",
    ]
    if not target.is_embedded:
        fields["then"] = RELOAD_COMMAND
        lines.append(f"reload the server's configuration to admit {name}: {RELOAD_COMMAND}")
    print_result(as_json, fields, lines)


def revoke(
    name: Annotated[
        str, typer.Argument(help="An agent, a committee member or a person.", autocompletion=completion.agents)
    ],
    run: RunName = None,
    run_: RunAlias = None,
    server: ServerOption = None,
    as_json: Json = False,
) -> None:
    """Revoke a key: close its connections at once and remove its file. `creds add` makes a new one.

    Example: oven-controller creds revoke scout --run grpo-1121-0231
    """
    if server is not None:
        target = AdministeredServer.for_folder(server)
        revoke_in_folder(target.server, name)
        run = target.server.run
    else:
        folder = Home().find(one_run(run, run_))
        was_operator = is_operator(folder.server, name)
        revoke_agent(folder, name)
        run = folder.run
        # A message without a key revokes the person's earlier key.
        if was_operator and (failure := announce(AdministeredServer.for_run(folder), OperatorKey(name=name))):
            warn(failure)
    fields = {"revoked": name, "run": run}
    lines = [f"revoked the key of {name} for {run}"]
    if server is not None:
        fields["then"] = RELOAD_COMMAND
        lines.append(f"the server still accepts it until you reload the server's configuration: {RELOAD_COMMAND}")
    print_result(as_json, fields, lines)


def list_keys(run: RunName = None, run_: RunAlias = None, server: ServerOption = None, as_json: Json = False) -> None:
    """List the keys of a run: names, roles and public keys, but no secrets.

    Example: oven-controller creds list --json
    """
    if server is not None:
        key_folder = open_server_folder(server)
    else:
        folder = Home().find(one_run(run, run_))
        if not folder.info().embedded:
            raise ConfigError(
                f"the keys for {folder.info().url} are on the server's machine; use --server FOLDER there"
            )
        key_folder = folder.server
    users = key_folder.users()
    print_result(as_json, users, (f"{user.name:<20} {user.role:<9} {user.public}" for user in users))


def server(
    folder: Annotated[Path, typer.Argument(help="Folder for nats.conf and creds/. Existing keys are kept.")],
    run: Annotated[
        str, typer.Option("--run", "-r", metavar="RUN", help="Run name; the keys are valid for this run only.")
    ],
    agents: Agents = None,
    members: Members = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the server.")] = "127.0.0.1:4222",
    store: Annotated[Path | None, typer.Option(help="Folder for the log.", show_default="in FOLDER")] = None,
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address that answers /healthz.")] = "",
    with_tls: Annotated[
        bool, typer.Option("--tls", help="Create a certificate authority and a certificate for --host.")
    ] = False,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address of the server; repeatable.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Your own certificate (PEM), instead of --tls.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of --tls-cert.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="The authority that signed --tls-cert.", show_default="a public one")
    ] = None,
) -> None:
    """Write a configuration for your own nats-server, with keys for every component of one run.

    Example: oven-controller creds server bus/ --run tuned-1 --listen 0.0.0.0:4222 --tls --host bus.example
    """
    names.validate("run", run)
    host, port = _parse_host_and_port("--listen", listen)
    server_files = ServerFolder(folder.absolute(), run)
    try:
        for role in get_args(Role):
            if role not in ("agent", "member"):
                server_files.add_user(role, role)
        for name in plugins.find_plugins("agents") if agents is None else agents:
            server_files.add_user("agent", names.validate("agent", name))
        for name in members or ():
            server_files.add_user("member", names.validate("member", name))
        certificate: Certificate | None
        authority: Path | None
        if not with_tls:
            certificate, authority = _check_own_certificate(tls_cert, tls_key, tls_ca, hosts or ())
        elif tls_cert or tls_key or tls_ca:
            raise ConfigError("--tls creates a certificate and --tls-cert names your own; use only one of them")
        else:
            certificate, authority = _create_certificate(server_files.folder / "tls", host, hosts or ())
        server_files.write_conf(port, host, store, http, certificate)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror} ({error.filename})") from error
    address = f"{hosts[0]}:{port}" if hosts else listen
    url = f"{'tls' if certificate else 'nats'}://{address}"
    ca_option = f" --tls-ca {authority}" if authority else ""
    if certificate is None and (warning := tls.plaintext_warning(url)):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"nats-server -c {server_files.conf}")
    print(f"oven-controller up --nats {url} --creds {server_files.creds}{ca_option} --run {run}")


def _parse_host_and_port(option: str, text: str, last_port: int = 65535) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 1 <= int(port) <= last_port or not (host or text.startswith(":")):
        raise ConfigError(f"{option} {text} is not HOST:PORT with a port up to {last_port}, e.g. 0.0.0.0:4222")
    return host, int(port)


def _create_certificate(folder: Path, listen_host: str, hosts: Sequence[str]) -> tuple[Certificate, Path]:
    if not hosts and listen_host in ("", "0.0.0.0", "::", "[::]"):
        raise ConfigError(
            f"a certificate needs a host name, and {listen_host or 'no host'} is not one; add --host NAME for clients"
        )
    from oven_core.security import certificates  # imported here because it needs an extra

    return certificates.create_certificate(folder, hosts or [listen_host.strip("[]")])


def _check_own_certificate(
    certificate: Path | None, key: Path | None, authority: Path | None, hosts: Sequence[str]
) -> tuple[Certificate | None, Path | None]:
    if certificate is None and key is None:
        if authority is not None or hosts:
            raise ConfigError("--host and --tls-ca need a certificate; add --tls, or --tls-cert and --tls-key")
        return None, None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key must be used together")
    for path in (certificate, key, authority):
        if path is not None and not path.is_file():
            raise ConfigError(f"there is no file {path}; check the path")
    if key.stat().st_mode & 0o077:
        raise ConfigError(f"other users can read {key}; run `chmod 600 {key}`")
    return Certificate(certificate.absolute(), key.absolute()), authority.absolute() if authority else None


def cluster(
    folder: Annotated[
        Path, typer.Argument(help="A folder written by `creds server`. Its users and limits apply to every node.")
    ],
    nodes: Annotated[
        list[str], typer.Option("--node", metavar="HOST:PORT", help="Address of a server for clients; repeatable.")
    ],
) -> None:
    """Write the configurations of a cluster of three or five nats-servers (node-1/ and so on), based on `creds server`.

    Example: oven-controller creds cluster bus/ --node a:4222 --node b:4222 --node c:4222
    """
    addresses = [_parse_host_and_port("--node", text, 65535 - ROUTE_OFFSET) for text in nodes]
    cluster_nodes = [Node(host, port, port + ROUTE_OFFSET) for host, port in addresses]
    server_files = ServerFolder(folder.absolute(), "")
    for conf in write_confs(server_files, cluster_nodes):
        print(f"nats-server -c {conf}")
    scheme = "tls" if "tls" in server_files.read_conf() else "nats"
    urls = ",".join(f"{scheme}://{text}" for text in nodes)
    replicas = min(len(nodes), 3)
    print(f"oven-controller up --nats {urls} --creds {server_files.creds} --set stream_replicas={replicas} --run RUN")
