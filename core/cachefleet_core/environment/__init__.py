"""Environment variables.

control_planes     names of control planes, and where their gateways are
removed_variables  those that processes do not read any more
"""
