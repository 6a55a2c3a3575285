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
TIMEOUT: Final = 30.0
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
        self._pending: dict[int, Future[Any]] = {}
        self._notifications: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._seen: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self.now = 0
        """What its clock was set to."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.receive("ready")

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "notification" in message:
                self._notifications.put(message)
                continue
            future = self._pending.pop(message["number"])
            if "error" in message:
                future.set_exception(PeerError(message["kind"], message["error"], message["code"]))
            else:
                future.set_result(message["answer"])
        self._notifications.put({"notification": "gone"})
        for future in list(self._pending.values()):
            future.set_exception(PeerError("Gone", "the Node program has ended"))

    # Asking

    def send(self, command: str, **arguments: Any) -> Future[Any]:
        """Ask, and do not wait for the answer."""
        number = next(self._numbers)
        future: Future[Any] = Future()
        self._pending[number] = future
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"number": number, "command": command, **arguments}) + "\n")
            self._process.stdin.flush()
        return future

    def request(self, command: str, **arguments: Any) -> Any:
        """Ask, and wait."""
        return self.send(command, **arguments).result(TIMEOUT)

    async def request_async(self, command: str, **arguments: Any) -> Any:
        """Ask, and await the answer: for tests with something of their own on the loop."""
        return await asyncio.wait_for(asyncio.wrap_future(self.send(command, **arguments)), TIMEOUT)

    def set_clock(self, now: int | None) -> None:
        """Let its clock stand at a millisecond; None: let it run."""
        self.now = now or 0
        self.request("clock", now=now)

    # What it says by itself

    def receive(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for a notice, seen before or to come, and take it off the list."""

        def is_wanted(message: dict[str, Any]) -> bool:
            return message["notification"] == kind and all(message.get(name) == value for name, value in fields.items())

        for message in self._seen:
            if is_wanted(message):
                self._seen.remove(message)
                return message
        while True:
            try:
                message = self._notifications.get(timeout=TIMEOUT)
            except queue.Empty:
                raise AssertionError(f"Node did not say {kind} {fields}, but {self._seen[-20:]}") from None
            if is_wanted(message):
                return message
            assert message["notification"] != "gone", f"Node has ended instead of saying {kind} {fields}"
            self._seen.append(message)

    async def receive_async(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Await a notice."""
        return await asyncio.to_thread(self.receive, kind, **fields)

    # Things in it

    def handle(self) -> str:
        """Name a new thing."""
        return f"h{next(self._handles)}"

    def queue(self, name: str, **options: Any) -> NodeQueue:
        """Make a Queue."""
        handle = self.handle()
        self.request("make", handle=handle, kind="Queue", queue=name, options=options)
        return NodeQueue(self, name, handle)

    def events(self, name: str, **options: Any) -> str:
        """Make a QueueEvents, from the stream's beginning: from "now" it would miss what comes while it starts."""
        handle = self.handle()
        options = {"lastEventId": "0-0", **options}
        self.request("make", handle=handle, kind="QueueEvents", queue=name, options=options)
        return handle

    def flows(self, **options: Any) -> str:
        """Make a FlowProducer."""
        handle = self.handle()
        self.request("make", handle=handle, kind="FlowProducer", options=options)
        return handle

    @contextlib.contextmanager
    def working(self, name: str, **options: Any) -> Iterator[str]:
        """Run a worker on a queue; with the end of the block it is stopped, whatever it has in hand."""
        handle = self.handle()
        self.request("work", handle=handle, queue=name, options=options)
        try:
            yield handle
        finally:
            if self._process.poll() is None:
                self.request("close", handle=handle)

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
        return self.peer.request("job", handle=self.handle, id=id, method=method, args=args)

    def __call__(self, method: str, *args: Any) -> Any:
        """Call a method."""
        return self.peer.request("call", handle=self.handle, method=method, args=args)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return lambda *args: self(method, *args)

    async def finished(self, id: str, events: str, *, timeout: float = TIMEOUT) -> Any:
        """Await a job's end as Node's producers do, by what QueueEvents hears."""
        future = self.peer.send("finished", handle=self.handle, events=events, id=id, timeout=int(timeout * 1000))
        return await asyncio.wait_for(asyncio.wrap_future(future), TIMEOUT)
