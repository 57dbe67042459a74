"""The commands `notify test` and `notify watch`, which send messages about a run by webhook, chat or e-mail."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import click

from oven_controller.cli.options import (
    DEFAULT_LIVE_RUN,
    DEFAULT_RUN,
    argument,
    config_option,
    json_option,
    print_result,
    remote_options,
    run_argument,
    run_option,
    settings_option,
)
from oven_core.errors import ConfigError
from oven_core.terminal_text import say
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_finder import find_run
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.process.secret_arguments import conceal
from oven_runs.settings.notifications import NotifySettings
from oven_runs.settings.resolution import notify_settings


@click.command()
@argument("urls", nargs=-1, metavar="[URL]...", help="Addresses, or env:NAME.  [default: from the settings]")
@config_option
@settings_option
@run_option("Run name.", show_default=DEFAULT_RUN)
@json_option
def send_test(
    urls: Sequence[str], config: Path | None, overrides: Sequence[str], run: str | None, as_json: bool
) -> int:
    """Send one message to each address and print the results. Without URL, use the addresses in the settings (--config,
    --set, OVEN_SET_NOTIFY__TO), or else in those of --run.

    Exit code 3 if a message was not accepted.

    Example: oven-controller notify test env:OPS_HOOK
    """
    from oven_controller.notify.message import TEST_MESSAGE
    from oven_controller.notify.recipients import resolve_recipients, tls_warnings

    folder = Home().find(run) if run is not None else None
    settings = _resolve_settings(urls, config, overrides, folder)
    recipients = resolve_recipients(settings, os.environ, folder.path if folder is not None else None)
    for warning in tls_warnings(recipients):
        say(f"warning: {warning}")
    failures = {recipient.name: recipient.send(TEST_MESSAGE) for recipient in recipients}
    results = [{"recipient": name, "sent": not failure, "failure": failure} for name, failure in failures.items()]
    lines = [f"{name}: failed: {failure}" if failure else f"{name}: sent" for name, failure in failures.items()]
    print_result(as_json, results, lines)
    return 3 if any(failures.values()) else 0


@click.command()
@run_argument(DEFAULT_LIVE_RUN)
@click.option(
    "--notify",
    "urls",
    multiple=True,
    metavar="URL",
    help="Address for messages: https://… (JSON), slack://…, discord://…, mailtos://…, or env:NAME; repeatable.",
)
@config_option
@settings_option
@remote_options
def watch(
    run: str | None, urls: Sequence[str], config: Path | None, overrides: Sequence[str], endpoint: Endpoint
) -> None:
    """Send messages about a running run, here or elsewhere, until it ends or Ctrl-C. Advice that is waiting for
    approval is sent immediately. Other earlier events are not sent.

    Example: oven-controller notify watch grpo-1121-0231 --notify env:OPS_HOOK
    """
    from oven_controller.notify.notifier import run_notifier
    from oven_controller.notify.recipients import resolve_recipients, tls_warnings

    settings = _resolve_settings(urls, config, overrides, None)
    recipients = resolve_recipients(settings, os.environ)
    access = find_run(run, endpoint, running=True)
    for warning in tls_warnings(recipients):
        say(f"warning: {warning}")
    names = ", ".join(recipient.name for recipient in recipients)
    say(f"run {access.run}: sending {', '.join(settings.on)} to {names}; press Ctrl-C to stop", flush=True)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    asyncio.run(run_notifier(access, settings, recipients))


def _resolve_settings(
    urls: Sequence[str], config: Path | None, overrides: Sequence[str], folder: RunFolder | None
) -> NotifySettings:
    """Return the settings from the command line, or the run's settings if the command line has no address. Raises
    ConfigError if neither has an address."""
    from oven_controller.notify.notifier_process import read_settings

    conceal(urls)
    settings = notify_settings(config=config, sets=overrides, environ=os.environ, urls=urls)
    if not settings.to and folder is not None:
        settings = read_settings(folder)
    if not settings.to:
        raise ConfigError(
            "no address for messages; pass one, e.g. env:OPS_HOOK for the address in that environment variable, or add "
            "it to the settings (`notify: {to: […]}`, --config FILE)"
        )
    return settings
