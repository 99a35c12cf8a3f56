"""Watches on pools and their objects, and the queue of pools to reconcile.

handlers     kopf handlers and settings
kopf_thread  runs kopf in a thread of its own
work_queue   queue of keys: no duplicates, back-off after failures
"""
