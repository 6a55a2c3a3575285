"""Writes ``src/onward/sync.py``: the sync form of every public class that waits, from the source of the async form.

Run it after a change to one of those classes: ``python -m tests.app.generate_sync``. A test compares the file with
what this would write. The rules:

- an ``async def`` becomes a ``def`` that runs it on the App's loop thread, with the same signature and docstring;
- where the class has a method ``_<name>_sync``, that is called instead: it works on the caller's own thread;
- an async generator becomes a generator, ``async with`` becomes ``with``;
- a handle, batch or flow that is returned becomes its sync form.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
TARGET: Final = ROOT / "src" / "onward" / "sync.py"
COMMAND: Final = "python -m tests.app.generate_sync"


class Source(NamedTuple):
    """A class to translate."""

    module: str
    name: str
    at: str
    """How users reach it."""
    at_sync: str
    parameters: str = ""
    """Its type parameters."""
    forwards: bool = False
    """Whether users hold the sync form itself, so that it has everything that the async form has."""


SOURCES: Final = (
    Source("handle", "JobHandle", "handle", "handle.sync", "R_co", forwards=True),
    Source("task", "Task", "task", "task.sync", "P, R"),
    Source("context", "JobContext", "context", "context.sync"),
    Source("resources", "Jobs", "app.jobs", "app.sync.jobs"),
    Source("resources", "DeadLetters", "app.dead", "app.sync.dead"),
    Source("resources", "Archive", "app.archive", "app.sync.archive"),
    Source("resources", "Queues", "app.queues", "app.sync.queues"),
    Source("resources", "Workers", "app.workers", "app.sync.workers"),
    Source("resources", "Schedules", "app.schedules", "app.sync.schedules"),
    Source("batches.resources", "Batch", "batch", "batch.sync", forwards=True),
    Source("batches.resources", "Flow", "flow", "flow.sync", forwards=True),
    Source("batches.resources", "Batches", "app.batches", "app.sync.batches"),
    Source("app", "App", "app", "app.sync"),
)
RESOURCES: Final = {source.at.partition(".")[2]: source.name for source in SOURCES if source.at.startswith("app.")}
TRANSLATED: Final = tuple(source.name for source in SOURCES)
DUNDERS: Final = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
VARIABLES: Final = ("P", "R", "R1", "R2", "R3", "R4", "R_co")
HEADER: Final = f'''"""The sync API: ``app.sync``, ``task.sync``, ``handle.sync``, … for code without an event loop.

Generated from the async classes; do not edit. After a change to those: ``{COMMAND}``.

Every call has the signature of its async form, and blocks. Enqueueing and completing happen on the caller's thread;
everything else is run by the App's loop thread: see :mod:`onward.loop_thread`. Inside a running event loop each call
raises :class:`onward.EventLoopRunning`.
"""

# mypy: disable-error-code="overload-overlap"
# ruff: noqa: SLF001 - the two forms of a class are one

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import msgspec
from msgspec import UNSET

from onward.job import R_co
from onward.loop_thread import refuse_inside_loop
'''
RUNTIME: Final = frozenset({"Any", "Generic", "ParamSpec", "TypeVar", "overload", "msgspec", "UNSET", "R_co"})


def tree_of(source: Source) -> ast.Module:
    path = ROOT / "src" / "onward" / f"{source.module.replace('.', '/')}.py"
    return ast.parse(path.read_text(encoding="utf-8"))


def class_of(source: Source, tree: ast.Module) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == source.name)


def synced(text: str) -> str:
    """Write a type with the sync forms in place of the async ones."""
    text = re.sub(rf"\b({'|'.join(TRANSLATED)})\b", r"Sync\1", text)
    text = re.sub(r"AsyncGenerator\[(.+), None\]", r"Generator[\1, None, None]", text)
    return text.replace("EventStream", "Generator[AnyEvent, None, None]")


def wrapped(call: str, returns: str) -> str:
    """Give the sync form of what a call returns."""
    if found := re.fullmatch(rf"({'|'.join(TRANSLATED)})(\[.*\])?", returns):
        return f"Sync{found[1]}({call})"
    if found := re.fullmatch(rf"list\[({'|'.join(TRANSLATED)})(\[.*\])?\]", returns):
        return f"[Sync{found[1]}(each) for each in {call}]"
    assert not re.search(rf"\b({'|'.join(TRANSLATED)})\b", returns), f"{returns} is not known here"
    return call


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Write the arguments that hand on all parameters but ``self``."""
    given = function.args
    parts = [argument.arg for argument in (*given.posonlyargs, *given.args)][1:]
    if given.vararg is not None:
        parts.append(f"*{given.vararg.arg}")
    parts += [f"{argument.arg}={argument.arg}" for argument in given.kwonlyargs]
    if given.kwarg is not None:
        parts.append(f"**{given.kwarg.arg}")
    return ", ".join(parts)


def documented(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(function) or ""
    text = re.sub(r"\basync (for \w+ in|with) (app)\b", r"\1 \2.sync", text)
    text = re.sub(r"\bawait (app|flow|batch)\.", r"\1.sync.", text)
    text = re.sub(r"\bawait (\w+)\.handle\(", r"\1.sync.handle(", text)
    return '    """' + text.replace("\n", "\n    ") + ('\n    """' if "\n" in text else '"""')


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, returns: str) -> str:
    return f"def {name}({synced(ast.unparse(function.args))}) -> {returns}:"


def is_generator(function: ast.AsyncFunctionDef) -> bool:
    return any(isinstance(node, ast.Yield) for node in ast.walk(function))


def method(source: Source, node: ast.FunctionDef | ast.AsyncFunctionDef, methods: set[str], overloads: str) -> str:
    """Write one method that waits."""
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    name = DUNDERS.get(node.name, node.name)
    call = f"self._inner.{node.name}({arguments_of(node)})"
    special = f"_{node.name.strip('_')}_sync"
    instead = f"await {source.at}.{node.name}(…)"
    if name == "__enter__":
        instead = f"async with {source.at}"
    elif isinstance(node, ast.FunctionDef) or is_generator(node):
        instead = f"async for … in {source.at}.{node.name}(…)"
    lines = [signature(node, name, synced(returns)), documented(node)]
    if name != "__exit__":
        at = source.at_sync if name == "__enter__" else f"{source.at_sync}.{name}"
        lines.append(f'    refuse_inside_loop("{at}", "{instead}")')
    if special in methods:
        call = f"self._inner.{special}({arguments_of(node)})"
        if returns == "Any" and "JobHandle" in overloads.rpartition("->")[2]:
            lines += [f"    made = {call}", "    return type(made)(map(SyncJobHandle, made))"]
            return "\n".join(lines)
    else:
        made = call.removesuffix("()") if call.endswith("()") else f"lambda: {call}"
        verb = "iterate" if isinstance(node, ast.AsyncFunctionDef) and is_generator(node) else "run"
        call = f"self._inner._loop.{verb}({made})"
    if returns in {"None", "Self"}:
        lines.append(f"    {call}")
        if returns == "Self":
            lines.append("    return self")
    else:
        lines.append(f"    return {wrapped(call, returns)}")
    return "\n".join(lines)


def forwarded(node: ast.FunctionDef, *, is_property: bool) -> str:
    """Write one method that does not wait."""
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    call = f"self._inner.{node.name}" + ("" if is_property else f"({arguments_of(node)})")
    body = f"    return {wrapped(call, returns)}"
    if node.name == "__repr__":
        body = f'    return f"<Sync{{{call.removesuffix("()")}()[1:]}}"'
    if node.name == "__len__":
        body = "    return len(self._inner)"
    lines = [signature(node, node.name, synced(returns)), documented(node), body]
    return ("@property\n" if is_property else "") + "\n".join(lines)


def members(source: Source, tree: ast.Module) -> Iterator[str]:
    """Write the members of one class."""
    body = class_of(source, tree).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = {node.name for node in functions}
    overloads: dict[str, list[str]] = {}
    for node in functions:
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        name, is_plain = node.name, isinstance(node, ast.FunctionDef)
        if name in {"sync", "__init__"} or (name.startswith("_") and not name.startswith("__")):
            continue
        if "overload" in decorators:
            returns = synced(ast.unparse(node.returns)) if node.returns is not None else "None"
            overloads.setdefault(name, []).append(f"@overload\n{signature(node, name, returns)} ...")
        elif not is_plain or f"_{name}_sync" in methods:
            before = overloads.get(name, [])
            yield "\n".join([*before, method(source, node, methods, "\n".join(before))])
        elif isinstance(node, ast.FunctionDef):
            returns = ast.unparse(node.returns) if node.returns is not None else ""
            if source.forwards or re.fullmatch(rf"({'|'.join(TRANSLATED)})(\[.*\])?", returns):
                yield forwarded(node, is_property="property" in decorators)


def translated(source: Source, tree: ast.Module) -> str:
    """Write one class."""
    inner = f"{source.name}[{source.parameters}]" if source.parameters else source.name
    bases = f"Generic[{source.parameters}]" if source.parameters else ""
    doc = f'    """The sync form of :class:`~onward.{source.module}.{source.name}`: ``{source.at_sync}``."""\n'
    if source.name == "JobHandle":  # of which many are made at once
        text = f"class Sync{source.name}(msgspec.Struct, {bases}, eq=False, gc=False):\n{doc}\n    _inner: {inner}\n"
    else:
        text = f"class Sync{source.name}{f'({bases})' if bases else ''}:\n{doc}\n    __slots__ = ('_inner',)\n\n"
        text += f"    def __init__(self, inner: {inner}) -> None:\n        self._inner = inner\n"
    made = list(members(source, tree))
    if source.name == "App":
        made[:0] = [
            f'@property\ndef {name}(self) -> Sync{kind}:\n    """The sync form of ``app.{name}``."""\n'
            f"    return self._inner.{name}.sync"
            for name, kind in RESOURCES.items()
        ]
    if source.name == "Flow":
        made.insert(
            0, '@property\ndef batch(self) -> SyncBatch:\n    """Its batch."""\n    return self._inner.batch.sync'
        )
    for member in made:
        text += "\n" + "\n".join(f"    {line}" if line else "" for line in member.split("\n")) + "\n"
    return text


def imports_of(classes: str, trees: dict[str, ast.Module]) -> str:
    """Write the imports of the names that signatures use."""
    used = {node.id for node in ast.walk(ast.parse(classes)) if isinstance(node, ast.Name)}
    used |= {source.name for source in SOURCES}
    used -= RUNTIME | set(VARIABLES)
    found: dict[str, str] = {"Generator": "collections.abc", "AnyEvent": "onward.events"}
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ImportFrom)
                and node.module is not None
                and not node.module.startswith("onward.sync")
            ):
                found |= {alias.name: str(node.module) for alias in node.names if alias.asname is None}
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = f"onward.{module}"
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, f"onward.{module}")
    lines = [f"    from {found[name]} import {name}" for name in sorted(used) if name in found]
    return "if TYPE_CHECKING:\n" + "\n".join(lines) + "\n"


def generated() -> str:
    """Write the module."""
    trees = {source.module: tree_of(source) for source in SOURCES}
    classes = "\n\n".join(translated(source, trees[source.module]) for source in SOURCES)
    variables = "\n".join(f'{name} = TypeVar("{name}")' for name in VARIABLES if name not in {"P", "R_co"})
    text = f'{HEADER}\n{imports_of(classes, trees)}\nP = ParamSpec("P")\n{variables}\n\n\n{classes}'
    for command in (["check", "--quiet", "--select", "I,F401", "--fix", "-"], ["format", "--quiet", "-"]):
        ruff = [sys.executable, "-m", "ruff", command[0], "--stdin-filename", str(TARGET), *command[1:]]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(generated(), encoding="utf-8")
