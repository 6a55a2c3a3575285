"""The command line, ``onward``: each module is a command or a small family of them, and ``main`` joins them."""
