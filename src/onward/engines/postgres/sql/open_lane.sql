-- Open a lane for jobs that are about to be copied in, and tell of them; answers what they get where they do not say it themselves.
select attempts, policy from onward.open_lane($1::text, $2::integer, $3::bigint, $4::text, $5::text, $6::text)
