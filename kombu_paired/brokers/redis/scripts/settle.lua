-- Removes locks of queues. What is still held under one goes into a list of its queue by the command ARGV[1], if there is
-- any, in the form that follows the token, or as it is where that is empty. What is held no more has come to somebody
-- else, whose lock it is. Answers with place and reason of each queue that cannot be worked with, and is left as it is.
--
-- A queue has three keys: the sorted set and the hash of its locks, and that list. In ARGV[2..] each has the number of
-- its locks, and as many pairs of a token and a form. What removes is first, as in receive.lua.
local put, answer, argument = ARGV[1], {}, 2
for first = 1, #KEYS, 3 do
    local locks, locked, list = KEYS[first], KEYS[first + 1], KEYS[first + 2]
    local last = argument + 2 * ARGV[argument]
    local length, reason = look(put ~= '' and {list} or {}, locks, locked)
    if not length then
        answer[#answer + 1] = (first - 1) / 3
        answer[#answer + 1] = reason
    else
        for each = argument + 1, last, 2 do
            local item = redis.call('HGET', locked, ARGV[each])
            redis.call('ZREM', locks, ARGV[each])
            redis.call('HDEL', locked, ARGV[each])
            if item and put ~= '' then
                redis.call(put, list, ARGV[each + 1] ~= '' and ARGV[each + 1] or item)
            end
        end
    end
    argument = last + 1
end
return answer
