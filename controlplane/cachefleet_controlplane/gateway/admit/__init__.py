"""Admits requests: the tenant by API key, its limits, the bounds of bodies.

tenant_admission  the entry: a request's tenant by API key, its limits, and accounting of its usage
request_bodies    reads and parses bodies within their bounds
"""
