"""What every engine must do, told once.

To add an engine, add an :class:`~tests.conformance.cases.EngineCase` to ``CASES``; nothing else here changes. A test
that needs a feature says so (``@needs(Feature.RATE)``); on an engine without it the test is left out, and
``test_refusals.py`` proves that asking for it is refused before anything is written.

Tests speak in the sentences of a :class:`~tests.conformance.driver.Driver` and look at time only through it.
"""
