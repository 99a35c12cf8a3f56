"""What vLLM's renderer makes of a request, before the engine sees it.

held_prompt      where a rendered prompt waits for word
late_members     members of a held request's body that come with word
recorded_prompt  token ids of a prompt whose conversation is kept
renderer_hook    the hook in vLLM's renderer
"""
