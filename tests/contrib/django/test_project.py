"""A Django project whose tasks Onward keeps: its own tests, run by Django, on real databases and with real workers."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

import onward
from tests.servers.postgres import postgres_url

PROJECT = Path(__file__).parent / "project"
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "django.md"


def run_tests(python: str, database: Mapping[str, object]) -> None:
    """Run the project's tests."""
    ran = subprocess.run(
        [python, "-W", "error", "manage.py", "test", "--noinput", "--verbosity", "2"],
        cwd=PROJECT,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(onward.__file__).parent.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SHOP_GUIDE": str(GUIDE),
            "SHOP_DATABASE": json.dumps(database),
        },
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Ran 14 tests" in ran.stderr


def sqlite(folder: Path) -> dict[str, object]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(folder / "db.sqlite3"),
        "TEST": {"NAME": str(folder / "test.sqlite3")},
    }


@pytest.mark.timeout(400)
def test_django_6_keeps_its_tasks_in_sqlite(django_6: str, tmp_path: Path):
    run_tests(django_6, sqlite(tmp_path))


@pytest.mark.timeout(400)
def test_django_6_keeps_its_tasks_in_postgresql(django_6: str):
    at = parse_qs(urlsplit(postgres_url()).query)
    name = f"django_{os.getpid()}"
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "TEST": {"NAME": name}}
    run_tests(django_6, database | {"HOST": at["host"][0], "USER": at["user"][0]})


@pytest.mark.timeout(400)
def test_so_does_a_django_before_6_with_the_backport(tmp_path: Path):
    if importlib.util.find_spec("django_tasks") is None:
        if sys.version_info < (3, 12) and os.environ.get("CI"):
            pytest.fail("django-tasks is not installed: pip install -e '.[dev]'")
        pytest.skip("needs the backport: pip install django-tasks")
    run_tests(sys.executable, sqlite(tmp_path))
