"""The pages that people read: README.md and docs/*.md."""
