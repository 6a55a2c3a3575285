"""Which App a command is about: one that a module defines (``--app``), or a bare one on a store (``--url``).

Options come before the environment (``ONWARD_APP``, ``ONWARD_URL``), the environment before ``[tool.onward]`` in
pyproject.toml, and an App before a URL, because it knows more.
A store alone is enough to look and to operate; running jobs takes the App that has their tasks.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from onward.app import App
from onward.arguments import nearest
from onward.cli.errors import EXIT_FAILED, EXIT_STORE_UNREACHABLE, CommandError, usage_error
from onward.config import URL_VARIABLE
from onward.core import core_of
from onward.errors import InvalidValue, OnwardError
from onward.project_file import ProjectSettings, project_settings
from onward.store_url import hide_secrets

APP_VARIABLE: Final = "ONWARD_APP"


def find_app(app: str | None, url: str | None, *, needs_tasks: bool = False) -> App:
    """Find the App that a command is about.

    Raises:
        CommandError: none is named, it cannot be imported, or it is no App.
    """
    project = _project()
    app_path = app or ((os.environ.get(APP_VARIABLE, "").strip() or project.app) if needs_tasks or not url else None)
    if app_path:
        return _load_with_url(app_path, url) if url else load(app_path)
    if needs_tasks:
        raise usage_error(
            "which app? its tasks are needed here",
            remedy=f"add --app module:app, or: export {APP_VARIABLE}=module:app, or app in [tool.onward]",
        )
    store = url or os.environ.get(URL_VARIABLE, "").strip() or project.url
    if not store:
        raise usage_error(
            "which store? neither an app nor a URL was given",
            remedy=f"add --url sqlite:///jobs.db or --app module:app, or set {URL_VARIABLE} or {APP_VARIABLE}",
        )
    return App(store)


def _project() -> ProjectSettings:
    try:
        return project_settings()
    except InvalidValue as error:
        raise usage_error(str(error)) from None


def _load_with_url(app_path: str, url: str) -> App:
    """Load an App for a URL that was asked for: one that names its own store is not given another."""
    os.environ[URL_VARIABLE] = url
    app = load(app_path)
    core = core_of(app)
    if not core.is_bound:
        core.bind(url)
    if core.url != url:
        raise usage_error(
            f"{app_path} names its own store, so --url {hide_secrets(url)} cannot be used with it",
            remedy=f"leave --url out, or write App() in {app_path.partition(':')[0]}: it then takes {URL_VARIABLE}",
        )
    return app


def load(app_path: str) -> App:
    """Import the App that ``module:name`` names, or make it by the factory that ``module:name()`` names.

    The name is ``app`` unless given, and ``folder/file.py`` works too.
    """
    path, _, attribute = app_path.partition(":")
    name = path.removesuffix(".py").strip("./").replace("/", ".")
    if not name:
        raise usage_error(f"{app_path!r} names no app", remedy="write it as module:app")
    # A script that was installed does not have the working directory on its path; the user's modules are there.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = _import(name)
    found: object = module
    is_factory = attribute.endswith("()")
    for part in (attribute.removesuffix("()") or "app").split("."):
        if not hasattr(found, part):
            apps = [known for known, value in vars(module).items() if isinstance(value, App)]
            raise usage_error(
                f"module {name} has no {attribute or 'app'!r}{nearest(part, apps)}", remedy=_example(name, apps)
            )
        found = getattr(found, part)
    if is_factory:
        found = _made_by(found, f"{name}:{attribute}")
    if not isinstance(found, App):
        if callable(found) and not is_factory:
            raise usage_error(
                f"{name}:{attribute} is a function, not an onward.App",
                remedy=f"if it makes one: --app '{name}:{attribute}()'",
            )
        apps = [known for known, value in vars(module).items() if isinstance(value, App)]
        raise usage_error(
            f"{name}:{attribute or 'app'} is a {type(found).__qualname__}, not an onward.App{nearest('', apps)}",
            remedy=_example(name, apps),
        )
    return found


def _made_by(factory: object, path: str) -> object:
    """Call a factory, and note with the App which one made it: child processes do the same."""
    if not callable(factory):
        raise usage_error(f"{path} is not a function", remedy=f"leave out the brackets: --app {path[:-2]}")
    try:
        made = factory()
    except OnwardError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise CommandError(
            f"{path} failed: {type(error).__qualname__}: {error} ({where.filename}, line {where.lineno})",
            effect="nothing was done",
            remedy="the same command with --debug shows the whole traceback",
            code=EXIT_FAILED,
        ) from error
    if isinstance(made, App):
        core_of(made).import_path = path
    return made


def _example(module: str, apps: list[str]) -> str:
    return f"--app {module}:{apps[0]}" if apps else f'write in {module}: app = App("sqlite:///jobs.db")'


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            close = nearest(name, _modules_here())
            raise usage_error(
                f"there is no module {error.name!r} in {Path.cwd()} nor among the installed packages{close}",
                remedy="run this where the module is, or put its folder on PYTHONPATH",
            ) from error
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise CommandError(
            f"importing {name} failed: {type(error).__qualname__}: {error} ({where.filename}, line {where.lineno})",
            effect="nothing was done",
            remedy="the same command with --debug shows the whole traceback",
            code=EXIT_FAILED,
        ) from error


def _modules_here() -> list[str]:
    here = Path.cwd()
    return [
        *(file.stem for file in here.glob("*.py")),
        *(folder.parent.name for folder in here.glob("*/__init__.py")),
    ]


def refuse_missing_file(app: App) -> None:
    """Refuse to look at a database that is not there: looking would make an empty one, and a typing error unseen."""
    if is_missing(app) and core_of(app).url != "sqlite://":
        raise CommandError(
            f"there is no database {core_of(app).engine.describe()['path']}",
            effect="nothing was done, and no empty one was made",
            remedy=f"check the path, or make it: onward migrate --url {core_of(app).url}",
            code=EXIT_STORE_UNREACHABLE,
        )


def is_server(app: App) -> bool:
    """Say whether an App's store is a server: to open it there for a look would make its tables, or change them."""
    return "path" not in core_of(app).engine.describe()


def is_missing(app: App) -> bool:
    """Say whether an App's store is a file that is not there yet."""
    path = core_of(app).engine.describe().get("path")
    return path is not None and not Path(path).exists()
