"""What the database keeps of prompts and answers: encrypted, and written and read by requests that wait for it.

store_thread    calls of a repository: in a thread, bounded, timed out
tenant_cipher   encrypts under a key for each tenant
"""
