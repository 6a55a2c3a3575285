-- Say that the jobs are to be run in this file.
insert into onward_identity (one, home) values (1, :home) on conflict (one) do update set home = excluded.home
