"""The report stream of one worker rank: the state machine that turns frames into index operations and resyncs.

stream           the values: stream, states, inputs and effects
stream_machine   ``step``: a pure transition function
"""
