-- Appends events to a stream, each once, and keeps the last state of each object. Nothing is in it of
-- what fails: the server checks its memory, disk and role at the first write, and runs a script as a whole.
--
-- KEYS: the stream, the hashes of objects and of sequences, the sorted set of deletions, then a key for each event
-- ARGV: the most entries, how long the key of an event stays and the time, both in milliseconds, and the time up to which
-- deletions expire; then for each event id, sequence, type, key, event, and what to do with the object's state
-- Returns for each event 0, 1 if the stream had it already, or 2 if the hash has a later state.
local stream, objects, sequences, deletions = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most, window, now, expired = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local stateful = false
local results = {}

local function later(a, b) -- decimal numbers, which may be too large for a number of Lua
	return #a > #b or #a == #b and a >= b
end

for i = 1, #KEYS - 4 do
	local at = 4 + (i - 1) * 6
	local id, sequence, kind, key, event, change = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6]
	results[i] = 0
	if window ~= '0' and redis.call('EXISTS', KEYS[4 + i]) == 1 then
		results[i] = 1
		redis.call('SET', KEYS[4 + i], '', 'KEEPTTL') -- WAIT waits for what its connection has written
	else
		if most == '0' then
			redis.call('XADD', stream, '*', 'id', id, 'sequence', sequence, 'type', kind, 'key', key, 'event', event)
		else
			redis.call('XADD', stream, 'MAXLEN', '~', most, '*', 'id', id, 'sequence', sequence, 'type', kind, 'key', key, 'event', event)
		end
		if window ~= '0' then
			redis.call('SET', KEYS[4 + i], '', 'PX', window)
		end
		if change ~= '' then
			stateful = true
			local last = redis.call('HGET', sequences, key)
			if last and later(last, sequence) then
				results[i] = 2
			else
				redis.call('HSET', sequences, key, sequence)
				if change == 'set' then
					redis.call('HSET', objects, key, event)
					redis.call('ZREM', deletions, key)
				else
					redis.call('HDEL', objects, key)
					redis.call('ZADD', deletions, now, key)
				end
			end
		end
	end
end

if stateful and expired ~= '0' then
	for _, key in ipairs(redis.call('ZRANGEBYSCORE', deletions, '-inf', expired, 'LIMIT', 0, 100)) do
		redis.call('ZREM', deletions, key)
		redis.call('HDEL', sequences, key)
	end
end
return results
