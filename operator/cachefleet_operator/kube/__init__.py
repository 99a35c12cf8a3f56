"""Kubernetes objects as the operator uses them: API verbs, drift detection, leader election.

drift    compares a live object with its manifest
leader   leader election with a Lease
objects  get, list, create, replace and apply by object reference
"""
