"""What runs beside and inside an engine: the agent that reports its blocks, the plugin that extends it."""
