"""No engine without the suite: what lies under ``onward.engines`` is a case of the conformance tests."""

from __future__ import annotations

import pkgutil

import onward.engines
from tests.conformance.cases import CASE_OF


def test_one_suite_runs_on_every_engine():  # X2
    shipped = {module.name for module in pkgutil.iter_modules(onward.engines.__path__) if module.ispkg}
    assert set(CASE_OF) == shipped
