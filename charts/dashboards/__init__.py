"""The Grafana dashboards of the chart, described in Python: ``python -m charts.dashboards`` writes their JSON.

- ``promql``: the few forms of PromQL that panels use
- ``dashboard``: dashboards, variables, rows and panels, and the JSON that Grafana reads
- ``fleet``: hit ratio, requests, tenants, decisions, conversations
- ``capacity_row``: its row about hit curves
- ``decisions_row``: its row about decisions, and what was lost against them
- ``tenant_rows``: its rows about tenants and their cache contracts
- ``control_plane_row``: its row about the control plane itself
- ``workers``: engines, what is routed to them, and their agents
- ``operator``: pools' conditions, and the operator's own work
- ``__main__``: writes or checks ``charts/cachefleet/dashboards/*.json``
"""
