-- The job header: what Onward has to say of a message, in its headers under `onward`. Anybody may have written there: whatever has
-- not the shape that we give it counts as not written.
--
-- What is recorded of a message's runs names the message (`message`: its id and when it was sent). Clients copy headers when they send
-- a message again (a redrive): the copy keeps its type, organisation and retry policy, and none of the counts of the other message.

create function onward.to_micros(at timestamptz) returns bigint
  language sql immutable strict parallel safe
  return (extract(epoch from at) * 1000000)::bigint;

create function onward.to_micros(duration interval) returns bigint
  language sql immutable strict parallel safe
  return (extract(epoch from duration) * 1000000)::bigint;

create function onward.message_key(msg_id bigint, enqueued_at timestamptz) returns text
  language sql immutable parallel safe
  return msg_id::text || '@' || onward.to_micros(enqueued_at)::text;

create function onward.job_header(headers jsonb, msg_id bigint, enqueued_at timestamptz) returns jsonb
  language sql immutable parallel safe
  return case when jsonb_typeof(headers -> 'onward') is distinct from 'object' then '{}'::jsonb
              when not headers -> 'onward' ? 'message' then headers -> 'onward'
              when headers -> 'onward' ->> 'message' = onward.message_key(msg_id, enqueued_at) then headers -> 'onward'
              else (headers -> 'onward') - array['message', 'attempts', 'reads', 'lost', 'put_backs', 'crashes', 'status', 'worker', 'error',
                                                 'errors', 'progress', 'progress_message', 'result'] end;

create function onward.header_integer(header jsonb, field text) returns integer
  language sql immutable parallel safe
  return case when jsonb_typeof(header -> field) = 'number'
              then least(greatest((header ->> field)::numeric, 0), 2147483647)::integer else 0 end;

-- How many reads of a message have come to an end that is known: the read count at its last outcome, or at its last loss.
create function onward.settled_reads(headers jsonb, msg_id bigint, enqueued_at timestamptz) returns integer
  language sql immutable parallel safe
  return onward.header_integer(onward.job_header(headers, msg_id, enqueued_at), 'reads');

-- How many reads in a row, before the next one, have ended without an outcome.
create function onward.unsettled_reads(read_ct integer, headers jsonb, msg_id bigint, enqueued_at timestamptz) returns integer
  language sql immutable parallel safe
  return read_ct - onward.settled_reads(headers, msg_id, enqueued_at) + onward.header_integer(onward.job_header(headers, msg_id, enqueued_at), 'lost');

-- Put a job header into headers. Those of others stay; headers that are no object are kept inside one.
create function onward.with_job_header(headers jsonb, header jsonb) returns jsonb
  language sql stable parallel safe
  return case when headers is null then '{}'::jsonb
              when jsonb_typeof(headers) = 'object' then headers
              else jsonb_build_object('headers', headers) end || jsonb_build_object('onward', header);

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
create function onward.patch_job_header(
    headers jsonb, msg_id bigint, enqueued_at timestamptz, patch jsonb, removed text[], failure jsonb, at timestamptz)
  returns jsonb
  language sql stable parallel safe
  return onward.with_job_header(headers, case
    when failure is null then onward.job_header(headers, msg_id, enqueued_at) - removed || patch
         || jsonb_build_object('message', onward.message_key(msg_id, enqueued_at))
    else onward.job_header(headers, msg_id, enqueued_at) - removed || patch
         || jsonb_build_object('message', onward.message_key(msg_id, enqueued_at), 'errors', onward.with_failure(
           onward.job_header(headers, msg_id, enqueued_at) -> 'errors', failure || jsonb_build_object('at', to_jsonb(at)))) end);

create function onward.to_interval(micros bigint) returns interval
  language sql immutable strict parallel safe
  return micros * interval '1 microsecond';

create function onward.to_timestamp(micros bigint) returns timestamptz
  language sql stable strict parallel safe
  return timestamptz 'epoch' + micros * interval '1 microsecond';
