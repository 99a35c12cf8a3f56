"""Supervision of processes: starts them in order, restarts them, ends them all.

guard        runs one command and kills all its processes at the end
process      one process to supervise, as data
supervision  state machine of one process
supervisor   starts, probes and ends processes
"""
