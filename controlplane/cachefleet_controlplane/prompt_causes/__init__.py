"""Why tokens that no worker held are new: where a prompt leaves its nearest earlier relative, and by what change.

prompt_cause    the causes, and how a prompt's first-seen tokens are divided among them; pure
prompt_shapes   shapes of the latest prompts, in native code and bounded memory; the causes of an ended request
cause_ledger    causes of the last hour by tenant, with what their mend is worth
prompt_lint     what of a prompt will not be served from cache, told before it is sent
mends           what to do about each cause, in words
"""
