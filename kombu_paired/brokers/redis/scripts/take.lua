-- Takes one message from the first of the lists KEYS[4..] that has one; answers with the place of that list among them.
-- Notes it in the hash KEYS[1] and the sorted set KEYS[2] under the tag ARGV[1], with the time ARGV[2], if there is a
-- queue (as JSON) in ARGV[6 + place]. The first ARGV[3] of the lists are the consumer's own: when nothing is found they
-- are registered in the sorted set KEYS[3] for ARGV[4] ms. Unless ARGV[5] is 0, what lies in lists whose lease ran out
-- is given back first; their names hold that of their queue's list, without the prefix ARGV[6], from byte ARGV[5].
--
-- The first write removes: a Redis whose memory is full lets such a script pass.
local function now()
    local clock = redis.call('TIME')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end
-- A move that was held up may come to pass after its lease: a list is looked into twice more.
local again = {['0'] = 60 * 1000, ['1'] = 30 * 60 * 1000}
local start = tonumber(ARGV[5])
if start > 0 then
    for _, taker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now(), 'LIMIT', 0, 100)) do
        local looks, own = string.sub(taker, 1, 1), string.sub(taker, 2)
        redis.call('ZREM', KEYS[3], taker)
        give_back(own, ARGV[6] .. string.sub(own, start))
        if again[looks] then redis.call('ZADD', KEYS[3], now() + again[looks], (looks + 1) .. own) end
    end
end
for place = 1, #KEYS - 3 do
    local item = redis.call('RPOP', KEYS[3 + place])
    if item then
        local queue = ARGV[6 + place]
        if queue ~= '' then
            redis.call('HSET', KEYS[1], ARGV[1], '[' .. item .. ',"",' .. queue .. ']')
            redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
        end
        return {place, item}
    end
end
for place = 1, tonumber(ARGV[3]) do
    redis.call('ZADD', KEYS[3], now() + ARGV[4], '0' .. KEYS[3 + place])
end
return false
