"""A local fleet: its folder, its ports, the plan of its processes, and their life.

data_folder  data folder: lock, secrets, paths
local_fleet  prepares and runs a fleet
machine      devices and vLLM of this machine
ports        free TCP ports
processes    plan of the processes of all pools
"""
