"""Which control plane a command asks, and how it is reached.

access          address and token: by options, environment, context, or the local fleet's
cluster_access  a control plane in a cluster, found and reached by kubectl
context_file    the user's file of named control planes
"""
