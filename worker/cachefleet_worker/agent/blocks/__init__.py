"""The blocks that one engine rank holds, as block keys: pure.

block_events      stores, removals and resets, as engines give them
block_identity    adapter, salt and media of an event's blocks
chains            held keys as report operations: merged changes, whole sets
checksum          sums of the device's block hashes by group, compared with the engine's
hash_names        blocks by engine hash, of now and (bounded) of before
lower_media       media below the device that hold a block, by hash
naming            keys of blocks, from events whose tokens line up with their hashes
resident_blocks   the held set, updated by KV events
scope             KV cache groups and tiers that are reported, and in which ways a block is held
"""
