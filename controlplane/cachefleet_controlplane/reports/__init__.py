"""The WebSocket endpoint to which agents report."""
