-- Tell whoever listens, with the commit, if anybody does: a commit that tells waits for every other that does. Who listens holds a
-- lock that says so, and looks for itself after taking it. It is tried and given back in one expression, which nothing interrupts.
-- $1 the channel, $2 what is told
select case when case when pg_try_advisory_lock(hashtextextended($1::text, 1))
                      then not pg_advisory_unlock(hashtextextended($1::text, 1)) else true end
            then pg_notify($1::text, $2::text) end
