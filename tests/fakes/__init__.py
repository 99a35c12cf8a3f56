"""Fakes: protocol-true stand-ins for what cachefleet talks to. Nothing here is a product part."""
