"""Sends HTTP requests as fast as a server answers them: wrk, a load generator in C that costs little processor time."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from onward.bench.statistics import Measurement
from onward.errors import OnwardError

_ANSWER_TIMEOUT: Final = 30
"""Seconds after which wrk gives up a request."""
_SCRIPT: Final = """
wrk.method = %(method)s
wrk.body = %(body)s
wrk.headers["Authorization"] = %(authorization)s
if wrk.body then wrk.headers["Content-Type"] = "application/json" end
done = function(summary)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  local form = '\\n{"requests": %%d, "micros": %%d, "failed": %%d}\\n'
  io.write(string.format(form, summary.requests, summary.duration, failed))
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that is sent again and again."""

    url: str
    method: str = "GET"
    token: str = ""
    body: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The answers that wrk received."""

    requests: int
    seconds: float
    failed: int
    """Answers that are not 2xx or 3xx, and connections that broke."""

    @property
    def measurement(self) -> Measurement:
        """The rate."""
        return Measurement(self.requests, self.seconds)


class _Summary(msgspec.Struct, frozen=True):
    requests: int
    micros: int
    failed: int


def load_generator() -> str:
    """Return the path of wrk.

    Raises:
        OnwardError: it is not installed.
    """
    found = shutil.which("wrk")
    if found is None:
        raise OnwardError("wrk, which sends the requests, is not installed: apt install wrk, or brew install wrk")
    return found


def send_load(request: Request, *, clients: int, seconds: int) -> Load:
    """Send a request for a number of seconds, by so many keep-alive connections at once.

    Raises:
        OnwardError: wrk is not installed, or could not measure.
    """
    program = load_generator()
    values = {"method": request.method, "body": request.body, "authorization": f"Bearer {request.token}"}
    script = _SCRIPT % {name: "nil" if value is None else _lua(value) for name, value in values.items()}
    with tempfile.TemporaryDirectory(prefix="onward-bench-wrk-") as folder:
        path = Path(folder) / "request.lua"  # a token is in it: a private folder, and not on the command line
        path.write_text(script, encoding="ascii")
        command = [program, "-t1", f"-c{clients}", f"-d{seconds}s", f"--timeout={_ANSWER_TIMEOUT}s", "-s", str(path)]
        done = subprocess.run([*command, request.url], check=False, capture_output=True, text=True)  # noqa: S603 - ours
    if done.returncode:
        raise OnwardError(f"wrk failed: {done.stderr.strip() or done.stdout.strip()}")
    summary = msgspec.json.decode(done.stdout.splitlines()[-1], type=_Summary)
    return Load(summary.requests, summary.micros / 1e6, summary.failed)


def _lua(value: str) -> str:
    return "[==[" + value + "]==]"
