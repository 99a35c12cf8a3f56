"""What control planes ask of a worker: policy, warm prefixes, drain; and the phase and readiness that follow.

adapter_loading      loads and unloads adapters of a running engine
adapter_steps        what is to be loaded and unloaded
conversation_ending  ends the conversations that the plugin keeps, once the cache is cleared
answers_handed_back  has a draining worker's engine give back answers that others can go on with
draining             state of a drain, and the route that the engine's first process calls
phases               phase and reasons against readiness, from the worker's condition
policy_delivery      applies a pool's policy, from a file or a control plane, to the engine
warm_prefixes        the prompts to cache, their progress, and the readiness gate that waits for them
warmup_requests      caches prompts by running them through the engine
warmup               warm prefixes across the epochs of a worker
"""
