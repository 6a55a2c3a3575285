"""Lets ``python -m onward.cli`` stand in for ``onward``, for processes that Onward itself starts."""

from onward.cli.main import main

main()
