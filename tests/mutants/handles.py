"""The planted bugs of the sync API, of handles and of what is told about a job that has ended."""

from __future__ import annotations

from typing import Final

from tests.mutants.harness import Edit, Mutant

_SYNC: Final = ("tests/app/test_sync.py",)
_RESULTS: Final = ("tests/app/test_results.py",)
_HOOKS: Final = ("tests/worker/test_hooks.py",)
_WATCHDOG: Final = ("tests/worker/test_loop_watchdog.py",)

HANDLES: Final = (
    Mutant(
        "sync: it is not refused inside a running loop",
        (Edit("loop_thread.py", "        raise EventLoopRunning(call, instead)\n", "        return\n"),),
        _SYNC,
        only="refused",
    ),
    Mutant(
        "sync: a call is left out of the generated module",
        (
            Edit(
                "sync.py",
                '        refuse_inside_loop("app.sync.queues.resume", "await app.queues.resume(…)")\n',
                "",
            ),
        ),
        _SYNC,
        only="generator",
    ),
    Mutant(
        "sync: enqueueing goes over the loop thread",
        (
            Edit(
                "task.py",
                "        enqueued = self._sender.send_sync(self._jobs(self._encoded(args, kwargs)), "
                "connection=self._using.connection)\n",
                "        enqueued = self._sender.results.loop.run(lambda: self._sender.send("
                "self._jobs(self._encoded(args, kwargs)), connection=None))\n",
            ),
        ),
        _SYNC,
        only="starts_no_loop_thread",
    ),
    Mutant(
        "sync: closing the app from a loop leaves the thread",
        (Edit("core.py", "        if self.loop.is_running and not self.loop.is_current:\n", "        if False:\n"),),
        _SYNC,
        only="closing_the_app",
    ),
    Mutant(
        "sync: closing the app by the sync API leaves the thread",
        (
            Edit(
                "core.py",
                "        self.loop.run(self.close)\n        self.loop.close()\n",
                "        self.loop.run(self.close)\n",
            ),
        ),
        _SYNC,
        only="closing_the_app",
    ),
    Mutant(
        "sync: a forked child uses the thread of its parent",
        (Edit("loop_thread.py", "        thread.reset_after_fork()\n", "        pass\n"),),
        _SYNC,
        only="fork",
    ),
    Mutant(
        "sync: an interrupt leaves the call running",
        (
            Edit(
                "loop_thread.py",
                "                outcome.interrupt()\n                wait([outcome])\n",
                "                pass\n",
            ),
        ),
        _SYNC,
        only="interrupt",
    ),
    Mutant(
        "sync: an iteration that is left early goes on",
        (Edit("loop_thread.py", "                    self.run(end)\n", "                    pass\n"),),
        _SYNC,
        only="left_early",
    ),
    Mutant(
        "sync: a batch in the caller's transaction is written by the loop thread",
        (
            Edit(
                "batches/resources.py",
                "        return complete_now(self.add(jobs, connection=connection))\n",
                "        return self._loop.run(lambda: self.add(jobs, connection=connection))\n",
            ),
        ),
        _SYNC,
        only="transaction",
    ),
    Mutant(
        "handle: an id alone is taken for a name with an empty queue",
        (
            Edit(
                "handle.py", "        return self.ref if self.ref.queue else self.ref.id\n", "        return self.ref\n"
            ),
        ),
        _RESULTS,
        only="from_an_id",
    ),
    Mutant(
        "handle: a filter takes an id alone for a name with an empty queue",
        (
            Edit(
                "resources.py",
                "    return job.ref if job.ref.queue else job.ref.id  # a handle that was made from an id alone\n",
                "    return job.ref\n",
            ),
        ),
        _RESULTS,
        only="from_an_id",
    ),
    Mutant(
        "gather: an error of the store counts as the result of a job",
        (Edit("app.py", "    except (JobError, JobNotFound) as error:\n", "    except OnwardError as error:\n"),),
        _RESULTS,
        only="store_that_is_away",
    ),
    Mutant(
        "gather: a job that is gone is raised",
        (Edit("app.py", "    except (JobError, JobNotFound) as error:\n", "    except JobError as error:\n"),),
        _RESULTS,
        only="gathered_as_its_error",
    ),
    Mutant(
        "retry: the handler's delay is ignored",
        (
            Edit(
                "worker/runner.py",
                "return Raised(_failure(handler, retry.__cause__ or error), delay=delay)",
                "return Raised(_failure(handler, retry.__cause__ or error))",
            ),
        ),
        ("tests/app/test_runner.py",),
        only="ask_for_a_retry",
    ),
    Mutant(
        "retry: its cause is forgotten",
        (Edit("worker/runner.py", "_failure(handler, retry.__cause__ or error)", "_failure(handler, error)"),),
        ("tests/app/test_runner.py",),
        only="ask_for_a_retry",
    ),
    Mutant(
        "retry: its cause is lost between processes",
        (Edit("worker/remote_error.py", "        error.__cause__ = rebuild(remote.cause)\n", "        pass\n"),),
        ("tests/worker/test_processes.py",),
        only="cause",
    ),
    Mutant(
        "hooks: a retried attempt calls on_failure",
        (
            Edit(
                "worker/hooks.py",
                "case Fail(failure) | Bury(failure):",
                "case Fail(failure=failure) | Bury(failure=failure) | Retry(failure=failure):",
            ),
            Edit("worker/hooks.py", "import Bury, Complete, Fail\n", "import Bury, Complete, Fail, Retry\n"),
        ),
        _HOOKS,
        only="final",
    ),
    Mutant(
        "hooks: they are called before the outcome is recorded",
        (
            Edit(
                "worker/settler.py",
                "        self._outbox.append(Settlement(held.claim, outcome, held.run_seconds))\n",
                "        self._outbox.append(Settlement(held.claim, outcome, held.run_seconds))\n"
                "        self._count([Settlement(held.claim, outcome, held.run_seconds)])\n",
            ),
        ),
        _HOOKS,
        only="recorded",
    ),
    Mutant(
        "hooks: what one raises is lost",
        (
            Edit(
                "worker/hooks.py",
                '                log.exception("%s hook failed; the job\'s outcome is recorded", name, extra=fields)\n',
                "                del fields\n",
            ),
        ),
        _HOOKS,
        only="logged",
    ),
    Mutant(
        "hooks: a stopping worker does not wait for them",
        (Edit("worker/running_worker.py", "                await self._hooks.finish()\n", "                pass\n"),),
        _HOOKS,
        only="stops",
    ),
    Mutant(
        "hooks: those that never end are left running",
        (Edit("worker/hooks.py", "        self._cancel(late)\n", "        del late\n"),),
        _HOOKS,
        only="never_end",
    ),
    Mutant(
        "watchdog: it warns of a loop that answers",
        (
            Edit(
                "worker/loop_watchdog.py",
                "        if self._answered.wait(self._threshold) or self._answered.wait(_SECOND_CHANCE):\n"
                "            return\n",
                "",
            ),
        ),
        _WATCHDOG,
        only="answers",
    ),
    Mutant(
        "watchdog: it does not know whose run it is",
        (
            Edit(
                "worker/runner.py",
                "            if run.asyncio_task is task:\n",
                "            if run.asyncio_task is None:\n",
            ),
        ),
        _WATCHDOG,
        only="named",
    ),
    Mutant(
        "watchdog: the worker does not start it",
        (Edit("worker/running_worker.py", "        self._loop_watchdog.start()\n", ""),),
        _WATCHDOG,
        only="named",
    ),
)
