-- Say that nothing more is to come, or to start, and see to it that the batch is looked at.
-- $1 name, $2 sealed, $3 stopped
with changed as (
  update onward.batch set sealed = sealed or $2::boolean, stopped = stopped or $3::boolean where name = $1::text
  returning name)
insert into onward.batch_event (batch, stops) select name, $3::boolean from changed
