"""``[tool.onward]`` in pyproject.toml: which App and which store a project uses.

    [tool.onward]
    app = "shop.app:app"
    url = "sqlite:///jobs.db"

The nearest pyproject.toml with that table counts, from the working directory upwards. Options of a command and the
environment (``ONWARD_APP``, ``ONWARD_URL``) come before it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

import msgspec

from onward.errors import InvalidValue

_FILE: Final = "pyproject.toml"


class ProjectSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table's keys."""

    app: str | None = None
    """The App of the command line, as ``module:app`` or ``module:create_app()``."""
    url: str | None = None
    """The store of an ``App()`` that names none, and of the command line."""


def project_settings(start: Path | None = None) -> ProjectSettings:
    """Read the table of the nearest pyproject.toml that has one; without one, nothing is set.

    Raises:
        InvalidValue: the file cannot be read, or has a key or value that it cannot have.
    """
    folder = Path.cwd() if start is None else start
    for each in (folder, *folder.parents):
        file = each / _FILE
        try:
            content = file.read_bytes()
        except OSError:
            continue
        try:
            table = tomllib.loads(content.decode()).get("tool", {}).get("onward")
        except (ValueError, AttributeError) as error:
            raise InvalidValue(_FILE, str(file), f"cannot be read: {error}") from None
        if table is not None:
            try:
                return msgspec.convert(table, ProjectSettings)
            except msgspec.ValidationError as error:
                rule = f"{error}: [tool.onward] has app and url, both texts"
                raise InvalidValue("[tool.onward]", str(file), rule) from None
    return ProjectSettings()
