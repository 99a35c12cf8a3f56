"""The WebSocket endpoint ``/v1/reports``, to which agents report the blocks and load of their workers.

connection     one agent's connection: Hello, frames in, frames out, close code
kept_states    States that native code keeps for Python: which sessions deal with theirs, and when
peer_log       which lines about connections to log
report_limits  bounds of a connection, and WebSocket close codes
server         the ASGI application: admits connections
"""
