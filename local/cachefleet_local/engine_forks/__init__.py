"""Starts vLLM engines on a CPU by forking one process that has imported vLLM: seconds of CPU instead of a minute.

fork_client    stands in for the interpreter that a command line names
fork_server    process that is forked, and the context that runs it
forked_engine  one engine in its fork, and its keeper process
"""
