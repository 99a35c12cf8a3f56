"""Envoy before a local fleet.

envoy_config  the configuration of an Envoy that asks our endpoint picker
"""
