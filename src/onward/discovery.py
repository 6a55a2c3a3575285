"""Finds the modules in which an application declares its tasks."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from onward.errors import InvalidValue


def modules_below(package: str, name: str) -> list[ModuleType]:
    """Import the modules of a package that are called so, at any depth, and what is below them.

    A package that is a plain module, or is called so itself, is such a module.

    Raises:
        InvalidValue: there are none.
    """
    root = importlib.import_module(package)
    if not hasattr(root, "__path__"):
        return [root]
    found = [root] if package.rpartition(".")[2] == name else []
    for each in pkgutil.walk_packages(root.__path__, f"{package}.", onerror=_raise):
        if name in each.name.removeprefix(f"{package}.").split(".") or found[:1] == [root]:
            found.append(importlib.import_module(each.name))
    if not found:
        rule = f"has no module called {name!r}, at any depth: name the package that has one, or give module=…"
        raise InvalidValue("discover", package, rule)
    return found


def _raise(_: str) -> None:
    raise  # noqa: PLE0704 - within the handler of pkgutil, which leaves out packages that cannot be imported otherwise
