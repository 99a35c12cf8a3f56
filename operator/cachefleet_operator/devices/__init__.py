"""Devices by Dynamic Resource Allocation.

cel_selectors     CEL expressions about a device
claim_templates   a pool's own ResourceClaimTemplates, where the API is served
device_memory     what ResourceSlices tell of the memory of the devices that a pool claims
waiting_claims    ResourceClaims for which pods wait, and why they are not allocated
"""
