"""Devices by Dynamic Resource Allocation.

cel_selectors     CEL expressions about a device
pool_claims       what a pool claims: its templates, where the API is served, and its devices' memory
waiting_claims    ResourceClaims for which pods wait, and why they are not allocated
"""
