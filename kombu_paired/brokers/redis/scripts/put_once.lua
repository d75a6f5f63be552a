-- Puts ARGV[1] into the list KEYS[1], unless the key KEYS[2] says that it has been put there; it says so for ARGV[2] seconds.
--
-- The list is first: what is refused there was not put, and a full Redis stops no script that has written.
if redis.call('EXISTS', KEYS[2]) == 0 then
    redis.call('LPUSH', KEYS[1], ARGV[1])
    redis.call('SET', KEYS[2], '', 'EX', ARGV[2])
end
