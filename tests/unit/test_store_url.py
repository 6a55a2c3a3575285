"""A store URL contains a password: no message shows it, nor a part of it."""

from __future__ import annotations

import pytest

from onward.app import App
from onward.core import core_of
from onward.engines.urls import open_engine
from onward.errors import InvalidValue
from onward.pg.database import Database
from onward.store_url import check_credentials, hide_secrets

UNENCODED = ["sword@fish", "sword/fish", "sword?fish", "sword#fish", "sw/or@d/fish", "@swordfish", "swordfish@"]
SCHEMES = ["postgresql", "pgboss+postgresql", "pgmq+postgresql", "redis", "rediss", "sqlite", "mysql"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("password", UNENCODED)
def test_a_password_that_is_not_encoded_is_refused_and_no_part_of_it_is_shown(scheme: str, password: str):  # X6
    with pytest.raises(InvalidValue) as refusal:
        open_engine(f"{scheme}://user:{password}@host:1234/db")
    assert refusal.value.field == "url"
    assert "%40" in refusal.value.rule or scheme == "sqlite"
    for part in ("sword", "fish", "ord"):
        assert part not in str(refusal.value).removeprefix(f"url = '{scheme}").replace("password", "")
        assert part not in str(refusal.value.value)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("password", ["]sword[fish", "sword[fish", "sword%EEfish"])
def test_a_password_that_no_parser_can_read_is_not_shown(scheme: str, password: str):  # X6
    try:
        shown = repr(open_engine(f"{scheme}://user:{password}@host/db").describe())
    except InvalidValue as refusal:
        shown = repr(refusal).replace("password", "")
    assert "sword" not in shown
    assert "fish" not in shown


@pytest.mark.parametrize("url", ["postgresql://user:sword?fish=1@host/db", "redis://user:sword?fish=1@host/0"])
def test_what_the_driver_says_of_a_url_shows_no_part_of_a_password(url: str):  # X6
    with pytest.raises(InvalidValue) as refusal:
        open_engine(url)
    assert "sword" not in str(refusal.value).replace("password", "")


def test_another_address_for_notifications_is_held_to_the_same():  # X6
    with pytest.raises(InvalidValue) as refusal:
        Database("postgresql://user:sword@fish@host/db")
    assert "fish" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:swordfish@host:5432/db?password=swordfish", "postgresql://…@host:5432/db?…"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://[::1]:5432,[fe80::2],h:/db", "postgresql://[::1]:5432,[fe80::2],h:/db"),
        ("postgresql://user:swordfish/db", "postgresql://user:…/db"),
        ("redis://:sw/ord@fish@host:6379/0", "redis://…@host:6379/0"),
        ("postgresql://h/db?listen_url=postgresql://u:swordfish@other/db", "postgresql://…"),
        ("redis://host/0?password=sword@fish", "redis://…"),
        ("postgresql://user:swordfish@host/db?password=sword@fish", "postgresql://…"),
        ("sqlite:///a@b.db", "sqlite:///a@b.db"),
        ("sqlite://user:swordfish@host/file", "sqlite://…@host/file"),
        ("host=db password=swordfish", "…"),
        ("jobs.db", "jobs.db"),
    ],
)
def test_a_url_is_shown_without_credentials_and_settings(url: str, shown: str):  # X6
    assert hide_secrets(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s%40wo%2Frd@host:5432/db?listen_url=postgresql://u:p@other/db",
        "redis://:p@one:26379,two:26380/0?sentinel=jobs",
        "unix:///run/redis@1.sock",
        "postgresql:///db?host=/run/postgresql",
    ],
)
def test_an_encoded_password_is_taken(url: str):  # X6
    assert check_credentials(url) == url


def test_the_configuration_is_shown_without_the_password():  # X6
    config = core_of(App("postgresql://user:swordfish@host:1234/db?sslmode=require", lease=12)).config
    assert "swordfish" not in f"{config} {config!r}"
    assert "host:1234/db" in repr(config)
    assert "lease=datetime.timedelta(seconds=12)" in repr(config)
    assert config.url.endswith("sslmode=require")
