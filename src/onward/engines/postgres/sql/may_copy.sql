-- Whether rows may be copied in: PostgreSQL lets nobody do that for whom row level security is in force.
select not row_security_active('onward.job')
