"""A local fleet: its folder, its ports, the plan of its processes, and their life.

data_folder     data folder: lock, secrets, paths
local_fleet     prepares and runs a fleet
machine         devices and vLLM of this machine
pool_file       the pools of a file, checked
port_promises   ports promised to one process, over all of the user's
ports           free TCP ports
processes       plan of the processes of all pools
start_progress  what a starting process is doing, and how long its start took last time
"""
