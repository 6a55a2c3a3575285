-- Read the store's time.
select pgboss.job_now()
