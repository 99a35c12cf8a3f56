"""Supervision of processes: starts them in order, restarts them, ends them all.

guard           runs one command and kills all its processes at the end
listeners       listening sockets that outlive the processes that serve them
process_spec    one process to supervise, as data
process_states  state machine of one process
supervisor      starts, probes and ends processes
"""
