"""Kubernetes objects as the operator uses them: API verbs, drift detection, leader election.

additions      what others added to an object and changes its meaning
drift          compares a live object with its manifest
foreign_edits  which field somebody else changed, and who
leader         leader election with a Lease
objects        get, list, create, replace, patch and apply by object reference
"""
