-- Notes: what Onward has to say of a message, in its headers under `onward`. Anybody may have written there: whatever has not
-- the shape that we give it counts as not written.

create function onward.note_of(headers jsonb) returns jsonb
  language sql immutable parallel safe
  return case when jsonb_typeof(headers -> 'onward') = 'object' then headers -> 'onward' else '{}'::jsonb end;

create function onward.whole(note jsonb, field text) returns integer
  language sql immutable parallel safe
  return case when jsonb_typeof(note -> field) = 'number'
              then least(greatest((note ->> field)::numeric, 0), 2147483647)::integer else 0 end;

-- How many reads of a message have come to an end that is known: the read count at its last outcome, or at its last loss.
create function onward.reads_of(headers jsonb) returns integer
  language sql immutable parallel safe
  return onward.whole(onward.note_of(headers), 'reads');

-- How many reads in a row, before the next one, have ended without an outcome.
create function onward.wasted(read_ct integer, headers jsonb) returns integer
  language sql immutable parallel safe
  return read_ct - onward.reads_of(headers) + onward.whole(onward.note_of(headers), 'lost');

-- Put a note into headers. Those of others stay; headers that are no object are kept inside one.
create function onward.with_note(headers jsonb, note jsonb) returns jsonb
  language sql stable parallel safe
  return case when headers is null then '{}'::jsonb
              when jsonb_typeof(headers) = 'object' then headers
              else jsonb_build_object('headers', headers) end || jsonb_build_object('onward', note);

-- The history of a message's failures with one more: the last twenty are kept.
create function onward.with_failure(history jsonb, failure jsonb) returns jsonb
  language sql immutable parallel safe
  return (
    select coalesce(jsonb_agg(kept.failure order by kept.number), '[]'::jsonb) || with_failure.failure
      from (select each.failure, each.number
              from jsonb_array_elements(case when jsonb_typeof(history) = 'array' then history else '[]'::jsonb end)
                   with ordinality each (failure, number)
             order by each.number desc limit 19) kept);

-- Write down what became of a message: the fields that change, those that go, and a failure, if it is one.
create function onward.noted(headers jsonb, patch jsonb, gone text[], failure jsonb, at timestamptz) returns jsonb
  language sql stable parallel safe
  return onward.with_note(headers, case
    when failure is null then onward.note_of(headers) - gone || patch
    else onward.note_of(headers) - gone || patch || jsonb_build_object('errors', onward.with_failure(
           onward.note_of(headers) -> 'errors', failure || jsonb_build_object('at', to_jsonb(at)))) end);

create function onward.micros(moment timestamptz) returns bigint
  language sql immutable strict parallel safe
  return (extract(epoch from moment) * 1000000)::bigint;

create function onward.micros(span interval) returns bigint
  language sql immutable strict parallel safe
  return (extract(epoch from span) * 1000000)::bigint;

create function onward.span(micros bigint) returns interval
  language sql immutable strict parallel safe
  return micros * interval '1 microsecond';

create function onward.moment(micros bigint) returns timestamptz
  language sql stable strict parallel safe
  return timestamptz 'epoch' + micros * interval '1 microsecond';
