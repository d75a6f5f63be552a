-- Before take.lua and give_back.lua: moves what lies in a list of a consumer's own to the front of its queue, in order.
local function give_back(own, list)
    -- Where something else has the queue's name, messages stay where they are: an error would stop whoever calls.
    local kind = redis.call('TYPE', list).ok
    if kind ~= 'list' and kind ~= 'none' then return end
    while true do
        local item = redis.call('LPOP', own)
        if not item then return end
        redis.call('RPUSH', list, item)
    end
end
