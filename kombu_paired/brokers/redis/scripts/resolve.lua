-- Removes the note of the tag ARGV[1] from the hash KEYS[1] and the sorted set KEYS[2]. If it was there, ARGV[3], ...
-- are put into the lists KEYS[3], ... by the command ARGV[2]: if not, somebody else has put them there.
--
-- A key that is no list is an error before anything is removed, and what removes is first: a full Redis lets it pass.
for place = 3, #KEYS do redis.call('LLEN', KEYS[place]) end
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
    for place = 3, #KEYS do redis.call(ARGV[2], KEYS[place], ARGV[place]) end
end
