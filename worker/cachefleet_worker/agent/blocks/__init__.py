"""The blocks that one engine rank holds, as block keys: pure.

chains            held keys as report operations: merged changes, whole sets
checksum          sum of the device's block hashes, compared with the engine's
hash_names        blocks by engine hash, of now and (bounded) of before
resident_blocks   the held set, updated by KV events
scope             which groups, tiers and blocks are reported
"""
