"""The process beside an engine: follows its block events and load, and reports both to every control plane.

It never logs, exports or sends a token id, a prompt, a salt or an engine's block hash.

blocks/            the blocks that an engine rank holds, as block keys
duties/            what control planes ask of a worker: policy, warm prefixes, drain; and its readiness
engines/           what the agent asks of an engine, and for each engine how it answers
reports/           WebSocket reports to the control planes
__main__           the process: settings, signals, drain, exit status
wiring             builds the agent beside its engine
agent              runs the parts; one session per epoch
worker_controller  applies policy, warm-up, health and drain across engine restarts
health             withdraws an engine that answers with broken numbers or with errors only
metrics            Prometheus metrics
server             HTTP application: probes, metrics, routes of other rooms
engine_session     one epoch of one engine: event sources, polls, loads
load_meter         the load that is reported, out of polls
suspension         why an engine that answers serves nothing
engine_arrival     waits for an engine, and tells of one that refuses the worker key
settings           environment variables
"""
