"""The demo: the same agents' work on two workers, once under round robin, once cache-aware, counted by vLLM."""
