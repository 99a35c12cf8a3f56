"""Exact memoised tokenisation in vLLM's render path, and the safe boundaries of a rendered chat."""
