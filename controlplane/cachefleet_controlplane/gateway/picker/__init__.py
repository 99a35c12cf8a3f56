"""The endpoint picker's part of the gateway: requests that Envoy sends to the workers decided on here.

picked_exchange  one request, from its placement to the end of the answer that Envoy passes on
"""
