"""``cachefleet doctor``.

doctor        the commands: faults of the fleet, certificates, hit probe
fleet_checks  faults of a fleet, from what the admin API tells
hit_probe     checks that a conversation's second turn is a cache hit
"""
