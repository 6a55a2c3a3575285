-- What tracing has to say of a job: headers, as JSON.
alter table onward_job add column trace text;
