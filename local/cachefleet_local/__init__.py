"""The command line ``cachefleet``, and a whole fleet as processes on one machine.

cli/                commands and their output
demo/               demo: round robin against cache-aware routing on two workers
engine_forks/       vLLM engines as forks of one process, on a CPU
fleet/              data folder, ports, process plan and life of a local fleet
foreign_manifests/  other projects' manifests, of which ``cachefleet import`` makes pools
models/             small models with random weights
supervise/          supervision of processes
__main__            entry point and most commands
cli_errors          failures of commands, exit statuses
"""
