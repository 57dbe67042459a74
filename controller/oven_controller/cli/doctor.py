"""The `doctor` command: check whether this machine is ready for a run, or whether the judges respond."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oven_controller.cli.options import config_option, json_option, print_table, settings_option
from oven_core.errors import ConfigError
from oven_runs.home.run_folder import Home
from oven_runs.settings.resolution import resolve

if TYPE_CHECKING:
    from oven_controller.stack.machine_checks import Check

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Also check this port.")
@click.option("--judges", is_flag=True, help="Instead, call each judge of the committee once. This costs a few tokens.")
@config_option
@settings_option
@json_option
def doctor(port: int | None, judges: bool, config: Path | None, overrides: Sequence[str], as_json: bool) -> int:
    """Check what a run needs on this machine: packages, the server, a port, disk space, the terminal and keys. Also
    check that no stopped run has left processes behind. With --judges, check instead whether each judge responds,
    supports a JSON Schema and log-probabilities, and has a known price.

    Exit code 1 if a check fails.

    Example: oven-controller doctor --judges --config oven.yaml
    """
    if not judges and (config is not None or overrides):
        raise ConfigError("--config and --set need --judges, because `doctor` reads no settings without it")
    is_ready = _check_judges(config, overrides, as_json) if judges else _check_machine(port, as_json)
    return int(not is_ready)


def _check_machine(port: int | None, as_json: bool) -> bool:
    from oven_controller.stack.machine_checks import run_checks

    checks = run_checks(Home(), port)
    is_ready = all(check.state != "fail" for check in checks)
    if as_json:
        print(json.dumps({"ready": is_ready, "checks": [asdict(check) for check in checks]}))
    else:
        for check in checks:
            _print_check(check)
        print("ready" if is_ready else "not ready: see the failures above")
    return is_ready


def _print_check(check: Check) -> None:
    click.echo(f"{click.style(f'{check.state:<5}', fg=_COLOURS[check.state])} {check.name:<12} {check.facts}")
    if check.remedy:
        click.echo(f"{'':19}→ {check.remedy}")


def _check_judges(config: Path | None, overrides: Sequence[str], as_json: bool) -> bool:
    from oven_controller.stack.judge_probes import probe_judges

    # `attached`, so that no recipe is needed
    committee = resolve(config=config, sets=overrides, environ=os.environ, attached=True).settings.committee
    results = probe_judges(committee)
    is_ready = all(result["can_judge"] for result in results.values())
    if as_json:
        print(json.dumps({"ready": is_ready, "judges": results}))
    else:
        _print_results(results)
        skipped = [f"{name} ({member.kind})" for name, member in committee.members.items() if name not in results]
        if skipped:
            print(f"not checked, because they run in the learner: {', '.join(skipped)}")
        print("all judges are ready" if is_ready else "not ready: see the failures above")
    return is_ready


def _print_results(results: dict[str, dict[str, Any]]) -> None:
    rows = []
    for name, result in results.items():
        price, latency = result.get("usd_per_million"), result.get("latency_s")
        rows.append(
            (
                name,
                result["provider"],
                result["model"],
                result.get("schema") or "–",
                f"top {result['top_logprobs']}" if result.get("top_logprobs") else "–",
                f"{price[0]:g} / {price[1]:g}" if price else "unknown",
                f"{latency:.1f} s" if latency is not None and result["can_judge"] else "–",
            )
        )
    print_table(("member", "provider", "model", "schema", "logprobs", "$ per 1M in/out", "latency"), rows)
    for name, result in results.items():
        if not result["can_judge"]:
            click.echo(f"{click.style('fail ', fg=_COLOURS['fail'])} {name}: {result['failure']}: {result['detail']}")
            if result["remedy"]:
                click.echo(f"      → {result['remedy']}")
        for limitation in result["missing_features"]:
            click.echo(f"{click.style('warn ', fg=_COLOURS['warn'])} {name}: {limitation}")
