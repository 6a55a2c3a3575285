-- The job that a key is throttled by, whatever has become of it.
select queue, id from onward_throttle where digest = :digest and until > :now
