-- Moves what is in KEYS[1], KEYS[3], ... to the front of KEYS[2], KEYS[4], ..., in order.
for each = 1, #KEYS, 2 do give_back(KEYS[each], KEYS[each + 1]) end
