-- The job that holds a key still, whatever has become of it.
select queue, id from onward_hold where digest = :digest and until > :now
