"""Devices by Dynamic Resource Allocation.

cel_selectors     CEL expressions about a device
pool_claims       what a pool claims: its templates, where the API is served, and its devices' memory
published_devices  what drivers publish, which of it a request admits, and its taints
waiting_claims    ResourceClaims for which pods wait, and why they are not allocated
"""
