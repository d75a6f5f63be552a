-- Takes up to ARGV[1] messages from queues, from each its share if there are enough, and locks each under a token: ARGV[3],
-- a colon and its number, from 0 and in the order of the answer. That is, again and again, the place of a queue, a number
-- and as many messages; for a queue that cannot be worked with the number is 0, and the reason follows.
--
-- A queue has 3 + ARGV[4] keys: the sorted set and the hash of its locks, its bell, its priority lists. In ARGV[5..] each
-- has the number of its tokens that are to be settled before, and these tokens. Before it is taken from, too, what was
-- locked for more than ARGV[2] ms goes back to its front, marked, since who held it may have delivered it. The bell of a
-- queue that becomes empty is silenced.
--
-- Each step begins with what removes: a Redis whose memory is full refuses a script whose first write may need some,
-- and stops none that has written. What would fail with an error fails before that.

-- The header is written into the text: to decode a body and encode it anew may change it.
local function marked(item)
    local _, opening = string.find(item, '"headers": {', 1, true)
    if not opening or string.find(item, '"x-paired-maybe-duplicate"', 1, true) then return item end
    local rest = string.sub(item, opening + 1)
    local comma = string.sub(rest, 1, 1) == '}' and '' or ', '
    return string.sub(item, 1, opening) .. '"x-paired-maybe-duplicate": "true"' .. comma .. rest
end
local limit, width = tonumber(ARGV[1]), 3 + ARGV[4]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answer, queues, taken, argument = {}, {}, 0, 5
local function tell(place, number, text)
    for _, each in ipairs({place, number, text}) do answer[#answer + 1] = each end
end
local function let_come_again(queue)
    for _, token in ipairs(redis.call('ZRANGEBYSCORE', queue.locks, '-inf', now - ARGV[2], 'LIMIT', 0, 1000)) do
        local item = redis.call('HGET', queue.locked, token)
        redis.call('ZREM', queue.locks, token)
        redis.call('HDEL', queue.locked, token)
        if item then
            redis.call('RPUSH', queue.lists[1], marked(item))
            queue.length = queue.length + 1
        end
    end
end
local function lock(queue, items)
    local notes, scores = {}, {}
    for each = #items, 1, -1 do  -- the last one is the oldest
        local token = ARGV[3] .. ':' .. taken
        notes[#notes + 1], notes[#notes + 2] = token, items[each]
        scores[#scores + 1], scores[#scores + 2] = now, token
        answer[#answer + 1] = items[each]
        taken = taken + 1
    end
    redis.call('HSET', queue.locked, unpack(notes))
    redis.call('ZADD', queue.locks, unpack(scores))
end
local function take(queue, most)
    for _, list in ipairs(queue.lists) do
        while most > 0 and queue.length > 0 do
            local items = redis.call('LRANGE', list, -math.min(most, at_once), -1)  -- RPOP of many: Redis 6.2
            if #items == 0 then break end
            redis.call('LTRIM', list, 0, -1 - #items)
            tell(queue.place, #items)
            lock(queue, items)
            most = most - #items
            queue.taken, queue.length = queue.taken + #items, queue.length - #items
        end
    end
end
for first = 1, #KEYS, width do
    local place, owed = (first - 1) / width, tonumber(ARGV[argument])
    local queue = {place = place, locks = KEYS[first], locked = KEYS[first + 1], bell = KEYS[first + 2], lists = {}}
    for list = first + 3, first + width - 1 do queue.lists[#queue.lists + 1] = KEYS[list] end
    local length, locks_or_reason = look(queue.lists, queue.locks, queue.locked)
    if length then
        queue.length, queue.taken = length, 0
        if locks_or_reason > 0 then
            unlock(queue.locks, queue.locked, argument + 1, argument + owed)
            let_come_again(queue)
        end
        queues[#queues + 1] = queue
    else
        tell(place, 0, locks_or_reason)
    end
    argument = argument + 1 + owed
end
local share = math.ceil(limit / #queues)
for _, queue in ipairs(queues) do take(queue, math.min(share, limit - taken)) end
for _, queue in ipairs(queues) do
    take(queue, limit - taken)
    if queue.length == 0 and queue.taken > 0 then redis.call('DEL', queue.bell) end
end
return answer
