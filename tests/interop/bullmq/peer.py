"""The other side: a Node program with the real BullMQ in it, told what to do by ``peer.cjs``'s commands."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from tests.servers.node import node_packages
from tests.servers.redis import connection_of

SCRIPT: Final = Path(__file__).with_name("peer.cjs")
PATIENCE: Final = 30.0
"""Seconds until an answer that does not come is given up; never reached where all is well."""

V6: Final = ("bullmq@6", "ioredis@5")  # which it no longer brings along
V5: Final = ("bullmq@5",)


class PeerError(Exception):
    """What BullMQ threw."""

    def __init__(self, kind: str, message: str, code: object = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message, self.code = kind, message, code


class NodePeer:
    """A running Node program. Commands can be given from any thread, and awaited or not."""

    def __init__(self, url: str, packages_wanted: tuple[str, ...] = V6) -> None:
        packages = node_packages(*packages_wanted)
        self.version = packages.versions["bullmq"]
        self._process = packages.start(
            SCRIPT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PEER_CONNECTION": json.dumps(connection_of(url))},
            start_new_session=True,
        )
        self._numbers = itertools.count(1)
        self._handles = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        self._notices: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._seen: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.now = 0
        """What its clock was set to."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.notice("ready")

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "notice" in said:
                self._notices.put(said)
                continue
            asked = self._asked.pop(said["no"])
            if "error" in said:
                asked.set_exception(PeerError(said["kind"], said["error"], said["code"]))
            else:
                asked.set_result(said["answer"])
        self._notices.put({"notice": "gone"})
        for asked in list(self._asked.values()):
            asked.set_exception(PeerError("Gone", "the Node program has ended"))

    # Asking

    def begin(self, do: str, **given: Any) -> Future[Any]:
        """Ask, and do not wait for the answer."""
        no = next(self._numbers)
        asked: Future[Any] = Future()
        self._asked[no] = asked
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"no": no, "do": do, **given}) + "\n")
            self._process.stdin.flush()
        return asked

    def ask(self, do: str, **given: Any) -> Any:
        """Ask, and wait."""
        return self.begin(do, **given).result(PATIENCE)

    async def tell(self, do: str, **given: Any) -> Any:
        """Ask, and await the answer: for tests with something of their own on the loop."""
        return await asyncio.wait_for(asyncio.wrap_future(self.begin(do, **given)), PATIENCE)

    def set_clock(self, now: int | None) -> None:
        """Let its clock stand at a millisecond; None: let it run."""
        self.now = now or 0
        self.ask("clock", now=now)

    # What it says by itself

    def notice(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for a notice, seen before or to come, and take it off the list."""

        def is_it(said: dict[str, Any]) -> bool:
            return said["notice"] == kind and all(said.get(name) == value for name, value in fields.items())

        for said in self._seen:
            if is_it(said):
                self._seen.remove(said)
                return said
        while True:
            try:
                said = self._notices.get(timeout=PATIENCE)
            except queue.Empty:
                raise AssertionError(f"Node did not say {kind} {fields}, but {self._seen[-20:]}") from None
            if is_it(said):
                return said
            assert said["notice"] != "gone", f"Node has ended instead of saying {kind} {fields}"
            self._seen.append(said)

    async def noticed(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Await a notice."""
        return await asyncio.to_thread(self.notice, kind, **fields)

    # Things in it

    def handle(self) -> str:
        """Name a new thing."""
        return f"h{next(self._handles)}"

    def queue(self, name: str, **options: Any) -> NodeQueue:
        """Make a Queue."""
        handle = self.handle()
        self.ask("make", handle=handle, kind="Queue", queue=name, options=options)
        return NodeQueue(self, name, handle)

    def events(self, name: str, **options: Any) -> str:
        """Make a QueueEvents, from the stream's beginning: from "now" it would miss what comes while it starts."""
        handle = self.handle()
        options = {"lastEventId": "0-0", **options}
        self.ask("make", handle=handle, kind="QueueEvents", queue=name, options=options)
        return handle

    def flows(self, **options: Any) -> str:
        """Make a FlowProducer."""
        handle = self.handle()
        self.ask("make", handle=handle, kind="FlowProducer", options=options)
        return handle

    @contextlib.contextmanager
    def working(self, name: str, **options: Any) -> Iterator[str]:
        """Run a worker on a queue; with the end of the block it is stopped, whatever it has in hand."""
        handle = self.handle()
        self.ask("work", handle=handle, queue=name, options=options)
        try:
            yield handle
        finally:
            if self._process.poll() is None:
                self.ask("close", handle=handle)

    # Its end

    def kill(self) -> None:
        """Kill it with whatever it has in hand."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class NodeQueue:
    """A Queue of Node's; what it has no method for is called by its own name."""

    def __init__(self, peer: NodePeer, name: str, handle: str) -> None:
        self.peer, self.name, self.handle = peer, name, handle

    def add(self, name: str, data: Any, **options: Any) -> dict[str, Any]:
        """Add one job."""
        added: dict[str, Any] = self("add", name, data, options)
        return added

    def job(self, id: str, method: str | None = None, *args: Any) -> Any:
        """Read a job, or call one of its methods."""
        return self.peer.ask("job", handle=self.handle, id=id, method=method, args=args)

    def __call__(self, method: str, *args: Any) -> Any:
        """Call a method."""
        return self.peer.ask("call", handle=self.handle, method=method, args=args)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *args: self(method, *args)

    async def finished(self, id: str, events: str, *, within: float = PATIENCE) -> Any:
        """Await a job's end as Node's producers do, by what QueueEvents hears."""
        asked = self.peer.begin("finished", handle=self.handle, events=events, id=id, within=int(within * 1000))
        return await asyncio.wait_for(asyncio.wrap_future(asked), PATIENCE)
