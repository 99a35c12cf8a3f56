"""Commands that are a file each.

console_link        ``cachefleet console``: a link that signs in to the console once
capacity            ``cachefleet capacity``: hit curves, and advice confirmed by simulation
check               ``cachefleet check``: a pool file
context_commands    ``cachefleet contexts``: list, set, use, remove
fleet_commands      ``cachefleet pools``, ``workers`` and ``decisions``
flush               ``cachefleet flush``: evicts cached blocks
import_pools        ``cachefleet import``: pools of other projects' manifests
kubectl_plugin      ``kubectl cachefleet``
lint                ``cachefleet lint``: what of a prompt will not be served from cache
simulate            ``cachefleet simulate``: another policy, budget or number of workers
up                  a fleet in the foreground
up_command          ``cachefleet up``: its options
"""
