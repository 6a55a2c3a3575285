-- Which job has a dedupe key for a time of its own: throttled jobs whatever has become of them, debounced ones while they wait.
create table onward_throttle (
  digest blob    primary key,
  until  integer not null,
  queue  text    not null,
  id     text    not null
) strict, without rowid;

create index onward_throttle_until on onward_throttle (until);
