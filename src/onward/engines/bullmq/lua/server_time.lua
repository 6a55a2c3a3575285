-- Reads the clock.
--
-- uses: queue
-- KEYS[1]  any key of ours
-- Answers microseconds since 1970.

return int_string(micros)
