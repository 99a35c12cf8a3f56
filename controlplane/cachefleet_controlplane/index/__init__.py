"""The block index: which worker holds which block, by block key, in Python or native code.

frame_ingest      received report frames; their blocks stay encoded until an index reads them
native_index      the index in native code
operation_checks  what is checked of an operation before anything changes
protocol          the BlockIndex Protocol, worker ids and errors
python_index      the index in Python
recent_removals   a worker's last changes, to tell why a block is gone
"""
