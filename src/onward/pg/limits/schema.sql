-- Permits of limited keys: see docs/explain/rates.md. Times and durations are microseconds, times since 1970.
-- Applied by Limiter.install in a schema of its own, and as a migration of the companion schemas of pg-boss and PGMQ.

create table if not exists onward.rate_permit (
  key            text   primary key,
  next_permit_at bigint not null
);
-- next statement
create table if not exists onward.concurrency_permit (
  key    text   not null,
  holder text   not null,
  lease  bigint not null,
  until  bigint not null,
  primary key (key, holder)
);
-- next statement
create index if not exists concurrency_permit_of_holder on onward.concurrency_permit (holder);
-- next statement
-- Take up to :wanted permits of each key, the same number of all, or none of any.
-- limits  JSON array of {key, count, period, burst, concurrency}: a rate is count starts in a period of microseconds
-- holder, lease  by whom concurrency permits are held, and for how long without renewal; one per holder and key
-- now_at  the time to go by; null: the database's clock, read when the keys are locked
-- -> how many were taken; if none, microseconds until it is worth asking again; microseconds within which to use a rate permit;
--    per key with a rate its next permit before and after, for give_up_permits
create or replace function onward.take_permits(
  limits jsonb, holder text default null, lease bigint default null, wanted integer default 1, now_at bigint default null,
  out taken integer, out retry_after bigint, out start_within bigint, out token jsonb)
language plpgsql as $$
declare
  one       record;
  permit_at bigint;
  free      integer;
  held      integer;
  ends_at   bigint;
begin
  taken := wanted;
  token := '{}';
  -- In the order of the keys, so that two that take several never wait for each other.
  for one in select l ->> 'key' as key from jsonb_array_elements(limits) l order by l ->> 'key' collate "C" loop
    loop
      perform from onward.rate_permit p where p.key = one.key for update;
      exit when found;
      insert into onward.rate_permit (key, next_permit_at) values (one.key, 0) on conflict do nothing;
    end loop;
  end loop;
  now_at := coalesce(now_at, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
  for one in
    select l ->> 'key' as key, (l ->> 'concurrency')::integer as concurrency, p.next_permit_at, r.*, (r.burst - 1) * r.spacing as reach
      from jsonb_array_elements(limits) l
      join onward.rate_permit p on p.key = l ->> 'key'
      cross join lateral (
        select (l ->> 'burst')::bigint as burst, s.slack / 2 as credit,
               div((l ->> 'period')::numeric + s.slack + (l ->> 'count')::bigint - (l ->> 'burst')::bigint,
                   (l ->> 'count')::bigint - (l ->> 'burst')::bigint + 1)::bigint as spacing
          from (select least((l ->> 'period')::bigint / 50, 2000000) as slack) s) r
  loop
    if one.spacing is not null then
      permit_at := least(one.next_permit_at, now_at + one.spacing + one.reach);
      retry_after := greatest(retry_after, permit_at - one.reach - now_at);
      start_within := least(start_within, one.credit);
      -- Written even where nothing is taken: reckoned from now each time, it would move away with every look.
      if permit_at < one.next_permit_at then
        update onward.rate_permit p set next_permit_at = permit_at where p.key = one.key;
      end if;
      free := 0;
      while free < taken and permit_at - one.reach <= now_at loop
        permit_at := greatest(permit_at, now_at - one.credit) + one.spacing;
        free := free + 1;
      end loop;
      taken := least(taken, free);
    end if;
    if one.concurrency is not null then
      -- The clock went back: no permit lasts longer than its lease from now.
      update onward.concurrency_permit c set until = now_at + c.lease where c.key = one.key and c.until > now_at + c.lease;
      select count(*), min(c.until) into held, ends_at from onward.concurrency_permit c
       where c.key = one.key and c.until > now_at and c.holder <> take_permits.holder;
      if held >= one.concurrency then
        taken := 0;
        retry_after := greatest(retry_after, ends_at - now_at);
      end if;
    end if;
  end loop;
  if taken = 0 then
    retry_after := greatest(retry_after, 0);
    start_within := null;
    return;
  end if;
  retry_after := null;
  for one in
    select l ->> 'key' as key, (l ->> 'concurrency')::integer as concurrency, p.next_permit_at, r.*
      from jsonb_array_elements(limits) l
      join onward.rate_permit p on p.key = l ->> 'key'
      cross join lateral (
        select s.slack / 2 as credit,
               div((l ->> 'period')::numeric + s.slack + (l ->> 'count')::bigint - (l ->> 'burst')::bigint,
                   (l ->> 'count')::bigint - (l ->> 'burst')::bigint + 1)::bigint as spacing
          from (select least((l ->> 'period')::bigint / 50, 2000000) as slack) s) r
  loop
    if one.spacing is not null then
      permit_at := one.next_permit_at;
      for _ in 1 .. taken loop
        permit_at := greatest(permit_at, now_at - one.credit) + one.spacing;
      end loop;
      update onward.rate_permit p set next_permit_at = permit_at where p.key = one.key;
      token := token || jsonb_build_object(one.key, jsonb_build_array(one.next_permit_at, permit_at));
    end if;
    if one.concurrency is not null then
      if one.spacing is null then
        -- An older snapshot of REPEATABLE READ does not see the permit below: a changed row makes it fail.
        update onward.rate_permit p set next_permit_at = p.next_permit_at where p.key = one.key;
      end if;
      insert into onward.concurrency_permit as c (key, holder, lease, until)
      values (one.key, take_permits.holder, take_permits.lease, now_at + take_permits.lease)
      on conflict on constraint concurrency_permit_pkey do update set lease = excluded.lease, until = excluded.until;
    end if;
  end loop;
end $$;
-- next statement
-- Give permits back that were not used. A key of which others have taken a permit since keeps its time: too few, never too many.
-- token  from take_permits
-- -> how many keys got their permits back
create or replace function onward.give_up_permits(token jsonb) returns integer
language plpgsql as $$
declare
  given integer;
begin
  perform from onward.rate_permit p where p.key in (select key from jsonb_each(token)) order by p.key collate "C" for update;
  update onward.rate_permit p set next_permit_at = (t.value ->> 0)::bigint
    from jsonb_each(token) t where p.key = t.key and p.next_permit_at = (t.value ->> 1)::bigint;
  get diagnostics given = row_count;
  return given;
end $$;
