"""Index, decisions and gateway: what the fleet's caches hold, and where each request is best served."""
