-- Before receive.lua and settle.lua: how many messages lie in lists, and how many locks there are; or nothing, and why a
-- queue cannot be worked with: a key of it holds something else. That would be an error in mid-way, where other queues may
-- have been changed already.
local function look(lists, locks, locked)
    local length = 0
    for _, list in ipairs(lists) do
        local answer = redis.pcall('LLEN', list)
        if type(answer) == 'table' then return nil, answer.err end
        length = length + answer
    end
    local count = redis.pcall('ZCARD', locks)
    if type(count) == 'table' then return nil, count.err end
    if length + count > 0 then  -- else the hash is not touched
        local answer = redis.pcall('HLEN', locked)
        if type(answer) == 'table' then return nil, answer.err end
    end
    return length, count
end
-- Commands cost more than what is in them, and are written to disk one by one; a script can name so many things in one.
local at_once = 1000
-- Removes the locks whose tokens stand in ARGV[first] to ARGV[last].
local function unlock(locks, locked, first, last)
    for from = first, last, at_once do
        local to = math.min(from + at_once - 1, last)
        redis.call('ZREM', locks, unpack(ARGV, from, to))
        redis.call('HDEL', locked, unpack(ARGV, from, to))
    end
end
