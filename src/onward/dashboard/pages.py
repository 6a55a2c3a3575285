"""All pages: which view shows each path, and which action each form is sent to."""

from __future__ import annotations

from typing import Final

from onward.dashboard.views import (
    access,
    batches,
    doctor,
    ended,
    job,
    jobs,
    operations,
    overview,
    queues,
    schedules,
    usage,
    workers,
)
from onward.dashboard.visit import FormKind, PageRoute


def _job_pages(base: str) -> tuple[PageRoute, ...]:
    return (
        PageRoute(path=base, show=job.show),
        PageRoute(path=f"{base}/replay", change=job.replay),
        PageRoute(path=f"{base}/cancel", change=job.cancel),
        PageRoute(path=f"{base}/delete", change=job.delete),
        PageRoute(path=f"{base}/run", change=job.run_now),
        PageRoute(path=f"{base}/reveal", change=job.reveal),
        PageRoute(
            path=f"{base}/edit", show=job.show_edit, change=job.edit, form=FormKind.PAYLOAD, operation="jobs.edit"
        ),
        PageRoute(
            path=f"{base}/copy", show=job.show_copy, change=job.copy, form=FormKind.PAYLOAD, operation="jobs.enqueue"
        ),
    )


PAGES: Final = (
    PageRoute(path="/", show=overview.show),
    PageRoute(path="/jobs", show=jobs.show, change=jobs.change, form=FormKind.SELECTION),
    *_job_pages("/jobs/{id}"),
    PageRoute(path="/queues", show=queues.show_all),
    PageRoute(path="/queues/{queue}", show=queues.show, change=queues.configure),
    PageRoute(path="/queues/{queue}/pause", change=queues.pause),
    PageRoute(path="/queues/{queue}/resume", change=queues.resume),
    *_job_pages("/queues/{queue}/jobs/{id}"),
    PageRoute(path="/workers", show=workers.show),
    PageRoute(path="/workers/{id}/quiet", change=workers.quiet),
    PageRoute(path="/workers/{id}/resume", change=workers.resume),
    PageRoute(path="/workers/{id}/stop", change=workers.stop),
    PageRoute(path="/schedules", show=schedules.show_all),
    PageRoute(
        path="/schedules/new",
        show=schedules.show_form,
        change=schedules.save,
        form=FormKind.PAYLOAD,
        operation="schedules.set",
    ),
    PageRoute(path="/schedules/{name}", show=schedules.show),
    PageRoute(
        path="/schedules/{name}/edit",
        show=schedules.show_form,
        change=schedules.save,
        form=FormKind.PAYLOAD,
        operation="schedules.set",
    ),
    PageRoute(path="/schedules/{name}/pause", change=schedules.pause),
    PageRoute(path="/schedules/{name}/resume", change=schedules.resume),
    PageRoute(path="/schedules/{name}/run", change=schedules.run),
    PageRoute(path="/schedules/{name}/delete", change=schedules.delete),
    PageRoute(path="/batches", show=batches.show_all),
    PageRoute(path="/batches/{name}", show=batches.show),
    PageRoute(path="/batches/{name}/pause", change=batches.pause),
    PageRoute(path="/batches/{name}/resume", change=batches.resume),
    PageRoute(path="/batches/{name}/cancel", change=batches.cancel),
    PageRoute(path="/batches/{name}/delete", change=batches.delete),
    PageRoute(path="/dead", show=ended.show_dead, change=ended.change_dead, form=FormKind.SELECTION),
    PageRoute(path="/archive", show=ended.show_archive, change=ended.change_archive),
    PageRoute(path="/archive/{id}", show=job.show_archived),
    PageRoute(path="/archive/{queue}/{id}", show=job.show_archived),
    PageRoute(path="/usage", show=usage.show),
    PageRoute(path="/operations", show=operations.show_all),
    PageRoute(path="/operations/{id}", show=operations.show),
    PageRoute(path="/operations/{id}/stop", change=operations.stop),
    PageRoute(path="/audit", show=access.show_audit),
    PageRoute(path="/tokens", show=access.show_tokens, change=access.create_token),
    PageRoute(path="/tokens/{id}/revoke", change=access.revoke_token),
    PageRoute(path="/doctor", show=doctor.show),
    PageRoute(path="/logout", change=access.log_out),
)
