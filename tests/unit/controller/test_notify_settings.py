"""Settings of notifications: what is refused, and that no secret of an address is shown anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oven_controller.notify import saved_addresses
from oven_controller.notify.recipients import resolve_recipients
from oven_core.errors import ConfigError
from oven_runs.settings.notifications import NotifySettings, safe_address
from oven_runs.settings.resolution import notify_settings
from oven_runs.settings.resolution import resolve as resolved

SECRET = "T0123456789abcdef"
HOOK = f"https://hooks.example/services/{SECRET}"


def settings_of(*urls: Any, **more: Any) -> NotifySettings:
    return NotifySettings.model_validate({"to": urls, **more})


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        (HOOK, "https://hooks.example/…"),
        (f"https://ann:{SECRET}@hooks.example:8443", "https://hooks.example:8443"),
        (f"https://hooks.example?token={SECRET}", "https://hooks.example/…"),
        (f"slack://{SECRET}/b/c", "slack://…"),
        (f"mailtos://ann:{SECRET}@example.com", "mailtos://…"),
        ("env:OPS_HOOK", "env:OPS_HOOK"),
    ],
)
def test_an_address_is_shown_without_secrets(url: str, seen: str) -> None:
    assert safe_address(url) == seen and SECRET not in seen
    settings = settings_of(url)
    assert settings.model_dump(mode="json")["to"][0]["url"] == seen
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()


def test_saved_settings_refer_to_addresses_in_a_private_file(tmp_path: Path) -> None:
    settings = saved_addresses.save(tmp_path, settings_of(HOOK, "env:OPS", {"url": HOOK, "headers": {"X-A": "A"}}))
    assert [recipient.url for recipient in settings.to] == [
        "saved:1 https://hooks.example/…", "env:OPS", "saved:1 https://hooks.example/…",
    ]  # fmt: skip
    again = NotifySettings.model_validate_json(settings.model_dump_json())
    recipients = resolve_recipients(again, {"OPS": HOOK + "2", "A": "v"}, tmp_path)
    assert [recipient.url for recipient in recipients] == [HOOK, HOOK + "2", HOOK]
    assert [recipient.name for recipient in recipients] == [
        "https://hooks.example/…",
        "env:OPS",
        "https://hooks.example/… (2)",
    ]
    assert SECRET not in repr(recipients)
    saved_addresses.save(tmp_path, settings_of(HOOK + "3"))
    assert dict(saved_addresses.read(tmp_path)) == {"1": HOOK, "2": HOOK + "3"}
    file = tmp_path / "notify" / "addresses.json"
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="has mode 0644: other users can read"):
        resolve_recipients(again, {}, tmp_path)
    file.unlink()
    with pytest.raises(ConfigError, match="missing from the run's folder; pass it again with --notify"):
        resolve_recipients(again, {}, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"to": [f"{SECRET} no address"]}, "notify.to.0.url (--set notify): it should be an address, e.g. https://…"),
        ({"to": [f"https:///{SECRET}"]}, "notify.to.0.url (--set notify): it should name a server"),
        ({"to": [f"env:{SECRET}-x"]}, "notify.to.0.url (--set notify): write env:NAME"),
        (
            {"to": [{"url": HOOK, "headers": {"X-A": f"{SECRET}-x"}}]},
            "it should be the name of an environment variable",
        ),
        ({"to": [{"url": HOOK, "headers": {"Host": "A"}}]}, "every message sets the header Host itself"),
        (
            {"to": [{"url": "slack://a/b/c", "headers": {"X-A": "A"}}]},
            "`headers` is for webhooks, and slack:// is not one",
        ),
        ({"to": [{"url": HOOK, "heders": {}}]}, "there is no setting 'notify.to.0.heders'"),
        ({"on": ["advise"]}, "it should be 'advice'"),
        ({"severity": "warn"}, "notify.severity = 'warn' (--set notify): it should be 'info', 'warning' or 'error'"),
        ({"too": [HOOK]}, "did you mean 'notify.to'"),
    ],
)
def test_wrong_settings_are_refused_without_repeating_secrets(settings: dict[str, Any], message: str) -> None:
    import json

    with pytest.raises(ConfigError) as error:
        resolved(sets=[f"notify={json.dumps(settings)}"], attached=True)
    assert message in str(error.value) and SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("env:NOPE", "notify.to (env:NOPE) needs the environment variable NOPE, but it is not set"),
        ("env:WRONG", "env:WRONG: the variable does not contain an address"),
        ("env:ROUND", "env:ROUND: the variable contains another reference"),
        (f"http://192.0.2.1/{SECRET}", "http://192.0.2.1/… does not use TLS, so anyone between here and 192.0.2.1"),
        (f"jsons://192.0.2.1/{SECRET}?x=y\tz", "it should be an address"),
        (f"json://192.0.2.1/{SECRET}", "json://… does not use TLS, so anyone between here and 192.0.2.1"),
        (f"slak://{SECRET}", "slak://…: apprise does not support slak://; did you mean slack://"),
        (f"slack://{SECRET}", "slack://…: apprise does not accept this slack:// address"),
    ],
)
def test_unusable_addresses_are_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        resolve_recipients(settings_of(url), {"WRONG": SECRET, "ROUND": "env:NOPE"})
    assert message in str(error.value)


def test_an_invalid_value_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as error:
        notify_settings(sets=[f"notify.to=[https://x/{SECRET}"], environ={})
    assert str(error.value).startswith("--set notify.to: the value is not valid YAML") and SECRET not in str(
        error.value
    )
    with pytest.raises(ConfigError, match="only notify can be set here"):
        notify_settings(sets=["seed=1"], environ={})
