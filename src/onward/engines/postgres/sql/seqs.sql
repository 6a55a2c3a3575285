-- Draw numbers for so many jobs: their order, where they cannot all be added at once.
select nextval('onward.job_seq') from generate_series(1, $1::integer)
