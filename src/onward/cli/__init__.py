"""The command line: ``onward``. Each module is a command or a small family of them; :mod:`onward.cli.main` joins them."""
