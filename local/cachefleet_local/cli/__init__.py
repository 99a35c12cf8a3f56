"""Commands of ``cachefleet`` and their output.

commands/           commands that are a file each
contexts/           which control plane is asked, and how it is reached
doctor/             ``cachefleet doctor``: faults, certificates, hit probe
explanation/        ``cachefleet explain``: one decision
live/               ``cachefleet status`` and ``top``: the whole fleet on one screen
output/             columns of items; ``--watch``
tenants/            ``cachefleet tenants``: tenants, keys, usage, idle caches
admin_client        HTTP client of the admin API
answers             asks the admin API, prints its answer
command_table       all commands, each imported when it is run
completion          names for the shell's completion
gateway_client      HTTP client of a gateway
listing             items as a table, JSON, YAML or names
options             options that commands share
quick_values        values of options without pydantic
screen              output of ``cachefleet up``
typed_answers       pools and workers in answers, as the values that the control plane made them from
"""
