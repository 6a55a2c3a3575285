"""What ``onward bench`` runs: the product as users have it, beside the bare store, on the same disk in the same minute.

A figure alone says more about a machine than about a queue. So each measurement stands beside what the store does
without a queue (:mod:`onward.bench.baseline_sqlite`), the two take turns, and the median of the rounds counts. Each
side runs in a process of its own that does nothing else (:mod:`onward.bench.isolated`), on a store that was empty
before (:mod:`onward.bench.environment`). Afterwards the store and the handlers' own ledger must agree that every job
has been completed, once, with its result (:mod:`onward.bench.verification`); a figure without that is worth nothing.

How to rerun all of it, and the peers: ``bench/README.md``.
"""
