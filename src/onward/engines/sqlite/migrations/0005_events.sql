-- What happens to jobs, in the order of commit: there is one writer. Written by triggers that are there only while somebody
-- listens (sql/event_trigger_*.sql), so that it costs nothing while nobody does. docs/explain/events.md has the reasons.
create table onward_event (
  no        integer primary key,  -- the newest is never trimmed, so a number is never given twice
  at        integer not null,
  event     text    not null,     -- its word; '': from here on events are recorded
  queue     text    not null default '',
  id        text    not null default '',
  type      text    not null default '',
  org_id    text,
  attempts  integer not null default 0,
  number    integer,              -- of progress, how much; of a retry, in how many microseconds
  message   text,                 -- who runs it, what it reported, its result, or why it failed
  traceback text
) strict;

create table onward_event_log (
  one            integer primary key check (one = 1),
  always         integer not null default 0,      -- recorded whether or not somebody listens
  max_events     integer not null default 10000 check (max_events >= 1),
  is_on          integer not null default 0,      -- the triggers exist
  on_no          integer not null default 0,      -- since this event they have been
  on_at          integer not null default 0,
  listened_until integer not null default 0,      -- somebody listens until then at least
  pruned_at      integer not null default 0       -- jobs that ended until then have been pruned, some of them or all
) strict;

insert into onward_event_log (one) values (1);

-- How far events have been read for something that must hear of each, and who does so.
create table onward_event_cursor (
  name   text    primary key,
  cursor text    not null,
  holder text    not null,
  until  integer not null
) strict, without rowid;
