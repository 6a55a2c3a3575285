"""The statements of this engine, as they stand in ``sql/``."""

from onward.engine.statements import Statements

SQL = Statements("onward.engines.sqlite")
