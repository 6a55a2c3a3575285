"""``python -m tests.mutants [words…]``: plant each bug whose name has one of the words, or every one; say which live.

First the tests are run on a tree without any bug: where they fail by themselves, no mutant is killed by them.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.mutants.harness import Judgement, Mutant, Verdict, copied_tree, judge, run
from tests.mutants.mutants import MUTANTS

AT_ONCE = 2


def main(words: list[str]) -> int:
    """Judge the mutants and answer how the program should exit."""
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    if not chosen:
        print(f"no mutant has any of these words in its name: {' '.join(words)}")
        return 2
    tests = {test for mutant in chosen for test in mutant.tests}
    once = sorted(test for test in tests if "::" not in test or test.partition("::")[0] not in tests)
    print(f"{len(chosen)} mutants. First the tests without any:", flush=True)
    with copied_tree() as tree:
        healthy = run(tree, once, engines={mutant.engine for mutant in chosen}, processes=AT_ONCE, timeout=1200)
    if healthy.verdict is not Verdict.SURVIVED:
        print(f"{healthy.output}\nThe tests fail without any bug planted: {healthy.by}")
        return 1
    print("they pass.\n", flush=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        judgements = list(pool.map(_judged, chosen))
    alive = [
        mutant for mutant, judgement in zip(chosen, judgements, strict=True) if judgement.verdict is not Verdict.KILLED
    ]
    print(f"\n{len(chosen) - len(alive)} of {len(chosen)} killed")
    for mutant in alive:
        print(f"  not killed: {mutant.name}")
    return 1 if alive else 0


def _judged(mutant: Mutant) -> Judgement:
    began = time.monotonic()
    judgement = judge(mutant)
    print(f"{judgement.verdict:9} {time.monotonic() - began:5.1f} s  {mutant.name:55} {judgement.by[:110]}", flush=True)
    if judgement.verdict is Verdict.BROKEN:
        print(judgement.output)
    return judgement


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
