-- Which schema version pg-boss has made.
select version from pgboss.version
