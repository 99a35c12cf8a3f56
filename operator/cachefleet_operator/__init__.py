"""Reconciles PrefixCachePools into worker pods."""
