"""Starts vLLM engines on a CPU by forking one process that has imported vLLM: seconds of CPU instead of a minute.

fork_server.py: the process that is forked, and who starts and ends it
forked_engine.py: one engine in its fork, and the process that keeps it
fork_client.py: stands in for the interpreter that a command line names
"""
