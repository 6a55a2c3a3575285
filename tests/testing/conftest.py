"""An App on a private SQLite file, with a clock that the test moves."""

from tests.app.conftest import app, clock

__all__ = ["app", "clock"]
