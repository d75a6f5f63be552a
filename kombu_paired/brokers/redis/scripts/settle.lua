-- Removes locks of queues. What is still held under one goes into a list of its queue by the command ARGV[1], if there is
-- any, in the form that is given for it, or as it is where that is empty. What is held no more has come to somebody
-- else, whose lock it is. Answers with place and reason of each queue that cannot be worked with, and is left as it is.
--
-- A queue has three keys: the sorted set and the hash of its locks, and that list. In ARGV[2..] each has the number of
-- its locks and their tokens, and if there is a command as many forms. What removes is first, as in receive.lua.
local put, answer, argument = ARGV[1], {}, 2
for first = 1, #KEYS, 3 do
    local locks, locked, list = KEYS[first], KEYS[first + 1], KEYS[first + 2]
    local count = tonumber(ARGV[argument])
    local last = argument + count
    local length, reason = look(put ~= '' and {list} or {}, locks, locked)
    if not length then
        answer[#answer + 1] = (first - 1) / 3
        answer[#answer + 1] = reason
    else
        local held = {}
        for each = 1, put ~= '' and count or 0 do held[each] = redis.call('HGET', locked, ARGV[argument + each]) end
        unlock(locks, locked, argument + 1, last)
        for each, item in ipairs(held) do
            local form = ARGV[last + each]
            if item then redis.call(put, list, form ~= '' and form or item) end
        end
    end
    argument = last + (put ~= '' and count or 0) + 1
end
return answer
