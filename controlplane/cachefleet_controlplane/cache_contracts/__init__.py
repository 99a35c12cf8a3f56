"""Whether tenants' cache contracts are met: judged by the minute, over the last hour, day and month, kept in the store.

contract_minutes  one contract's minutes: what happened, was it met, why not (pure)
contract_records  all contracts: takes answers and what workers hold, ends minutes
contract_report   what is shown of a contract
contract_metrics  the same as Prometheus metrics
"""
