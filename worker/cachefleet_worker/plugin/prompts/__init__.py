"""Prompts rendered once: what a request for keys has rendered serves the request that follows it.

held_prompt      where a rendered prompt waits for word
late_members     members of a held request's body that come with word
offered_prompt   the handle that a request bears, from its header to the renderer
prompt_store     rendered prompts by handle, bounded in bytes and time
render_call      one call of vLLM's renderer: its digest, and its result to be kept (pure)
renderer_hook    the hook in vLLM's renderer
"""
