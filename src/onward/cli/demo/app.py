"""The demo's App as its worker processes load it: ``onward work --app onward.cli.demo.app:app``."""

from __future__ import annotations

import os
from pathlib import Path

from onward.cli.demo.ledger import LEDGER_VARIABLE, Ledger
from onward.cli.demo.tasks import make_app
from onward.config import URL_VARIABLE

app = make_app(os.environ[URL_VARIABLE], Ledger(Path(os.environ[LEDGER_VARIABLE])))
