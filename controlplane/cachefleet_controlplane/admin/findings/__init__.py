"""What is wrong with a fleet, and what to do about it: pure functions from live state to findings.

capacity_findings  what hit curves say where it matters
contract_findings  cache contracts that are not met
finding            one finding: severity, subject, reason, words, what to do
findings           all findings, the most severe first
pool_findings      what is wrong with pools
service_findings   what is wrong with the control plane: pools not read, store, tenants, index
worker_findings    what is wrong with workers
"""
