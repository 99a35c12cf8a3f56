"""Devices by Dynamic Resource Allocation.

claim_templates   a pool's own ResourceClaimTemplates, where the API is served
waiting_claims    ResourceClaims for which pods wait, and why they are not allocated
"""
