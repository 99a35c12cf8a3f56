"""The block index: which worker holds which block, by block key.

block_index      the index, in native code, and its errors
frame_ingest     received report frames; their blocks stay encoded until the index reads them
worker_id        the id of one rank of one worker
"""
