"""The demo: the same trace on two workers, under round robin and cache-aware routing, counted by vLLM.

__main__    entry point
client      sends the trace through the gateway
engines     vLLM's token counters and resets of prefix caches
figure      hit ratio and time to first token over time, as SVG
report      sums, table, JSON and checks of the result
policy_run  runs the trace once under each policy
workload    trace of chat requests
"""
