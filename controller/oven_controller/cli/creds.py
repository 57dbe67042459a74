"""The `creds` commands: manage keys for agents and people on other machines, and for a run on the user's own server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from oven_controller.cli import completion
from oven_controller.cli.options import DEFAULT_RUN, PATH, argument, json_option, print_result, run_argument
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
from oven_core.terminal_text import warn
from oven_runs.home.run_folder import Home
from oven_runs.server.cluster import ROUTE_OFFSET, Node, write_confs
from oven_runs.server.embedded_server import ServerFolder

RELOAD_COMMAND = "nats-server --signal reload=PID"
"""Command that makes the user's own server reload its configuration."""

server_option = click.option("--server", type=PATH, help="A folder of `creds server`, instead of a run.")


@click.command()
@argument(
    "name",
    shell_complete=completion.installed_agents,
    help="Name of an agent, which may vote only under this name, or of a person, for the log.",
)
@run_argument(DEFAULT_RUN)
@click.option(
    "--completions/--no-completions",
    default=None,
    show_default="unchanged; no for a new key",
    help="Whether the agent may read sampled completions.",
)
@click.option("--operator", is_flag=True, help="Make a person's key to control and watch the run from any machine.")
@click.option("--read-only", is_flag=True, help="Make a person's key to watch the run only.")
@server_option
@click.option("--nats", default="", show_default="the run's", help="Server address for the person's file.")
@click.option("--tls-ca", type=PATH, show_default="the server's", help="Certificate authority for the person's file.")
@click.option("--out", type=PATH, show_default="NAME.oven in creds/", help="File to write for the person.")
@json_option
def add(
    name: str,
    run: str | None,
    completions: bool | None,
    operator: bool,
    read_only: bool,
    server: Path | None,
    nats: str,
    tls_ca: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Make a key for a run. For an agent, print the environment of its process. For a person, write one file.

    Example: oven-controller creds add scout --run grpo-1121-0231

    Example: oven-controller creds add ada --operator --out ada.oven
    """
    if operator and read_only:
        raise ConfigError("--operator and --read-only cannot be combined; use only one of them")
    if operator or read_only:
        role: PersonRole = "operator" if operator else "monitor"
        _grant_access(name, role, run, server, nats, tls_ca, out, as_json)
        return
    if server or nats or tls_ca or out:
        raise ConfigError(
            "--server, --nats, --tls-ca and --out need a person's key; add --operator or --read-only, or use `creds "
            "server --agent NAME` for an agent's key on your own server"
        )
    folder = Home().find(run)
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


@click.command()
@argument("name", shell_complete=completion.agents, help="An agent, a committee member or a person.")
@run_argument(DEFAULT_RUN)
@server_option
@json_option
def revoke(name: str, run: str | None, server: Path | None, as_json: bool) -> None:
    """Revoke a key: close its connections at once and remove its file. `creds add` makes a new one.

    Example: oven-controller creds revoke scout --run grpo-1121-0231
    """
    if server is not None:
        target = AdministeredServer.for_folder(server)
        revoke_in_folder(target.server, name)
        run = target.server.run
    else:
        folder = Home().find(run)
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


@click.command()
@run_argument(DEFAULT_RUN)
@server_option
@json_option
def list_keys(run: str | None, server: Path | None, as_json: bool) -> None:
    """List the keys of a run: names, roles and public keys, but no secrets.

    Example: oven-controller creds list --json
    """
    if server is not None:
        key_folder = open_server_folder(server)
    else:
        folder = Home().find(run)
        if not folder.info().embedded:
            raise ConfigError(
                f"the keys for {folder.info().url} are on the server's machine; use --server FOLDER there"
            )
        key_folder = folder.server
    users = key_folder.users()
    print_result(as_json, users, (f"{user.name:<20} {user.role:<9} {user.public}" for user in users))


@click.command()
@argument("folder", type=PATH, help="Folder for nats.conf and creds/. Existing keys are kept.")
@click.option("--run", "-r", required=True, metavar="RUN", help="Run name; the keys are valid for this run only.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    show_default="all installed agents",
    shell_complete=completion.installed_agents,
    help="Name of an agent; repeatable.",
)
@click.option("--member", "members", multiple=True, metavar="NAME", help="Name of a remote judge; repeatable.")
@click.option("--listen", default="127.0.0.1:4222", metavar="HOST:PORT", help="Address of the server.")
@click.option("--store", type=PATH, show_default="in FOLDER", help="Folder for the log.")
@click.option("--http", default="", show_default=False, metavar="HOST:PORT", help="Address that answers /healthz.")
@click.option("--tls", "with_tls", is_flag=True, help="Create a certificate authority and a certificate for --host.")
@click.option("--host", "hosts", multiple=True, help="A name or address of the server; repeatable.")
@click.option("--tls-cert", type=PATH, help="Your own certificate (PEM), instead of --tls.")
@click.option("--tls-key", type=PATH, help="The key of --tls-cert.")
@click.option("--tls-ca", type=PATH, show_default="a public one", help="The authority that signed --tls-cert.")
def server(
    folder: Path,
    run: str,
    agents: Sequence[str],
    members: Sequence[str],
    listen: str,
    store: Path | None,
    http: str,
    with_tls: bool,
    hosts: Sequence[str],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
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
        for name in agents or plugins.find_plugins("agents"):
            server_files.add_user("agent", names.validate("agent", name))
        for name in members:
            server_files.add_user("member", names.validate("member", name))
        certificate: Certificate | None
        authority: Path | None
        if not with_tls:
            certificate, authority = _check_own_certificate(tls_cert, tls_key, tls_ca, hosts)
        elif tls_cert or tls_key or tls_ca:
            raise ConfigError("--tls creates a certificate and --tls-cert names your own; use only one of them")
        else:
            certificate, authority = _create_certificate(server_files.folder / "tls", host, hosts)
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


@click.command()
@argument("folder", type=PATH, help="A folder written by `creds server`. Its users and limits apply to every node.")
@click.option(
    "--node",
    "nodes",
    multiple=True,
    required=True,
    metavar="HOST:PORT",
    help="Address of a server for clients; repeatable.",
)
def cluster(folder: Path, nodes: Sequence[str]) -> None:
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
