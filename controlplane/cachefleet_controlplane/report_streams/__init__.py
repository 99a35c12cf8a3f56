"""The report stream of one worker rank: the state machine that turns frames into index operations and resyncs.

report_stream         the values: stream, states, inputs and effects
stream_state_machine  ``step``: a pure transition function
"""
