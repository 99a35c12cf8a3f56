"""What the control plane remembers across restarts. Losing it never stops routing."""
