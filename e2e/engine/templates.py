"""Chat templates of the shapes that models use, and what a conversation for each may contain.

Written here for the shapes alone: how turns are marked, what is dropped, moved or put together. Some go back: a later
turn renders an earlier one otherwise than before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template by name."""

    name: str
    text: str
    tools: bool = False
    """It shows tools, calls and their results."""
    reasoning: bool = False
    """It shows reasoning, of the last turn alone."""
    goes_back: bool = False
    """A later turn may change how an earlier one is rendered."""


_CALLS: Final = (
    "{% if message.tool_calls %}{% for call in message.tool_calls %}"
    '{{ \'\\n<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}"
    "{{ '}\\n</tool_call>' }}{% endfor %}{% endif %}"
)

CHATML: Final = Template(
    "chatml",
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
)

THINKING: Final = Template(
    "thinking",
    "{% set last = namespace(user=-1) %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% if tools %}{{ '<|im_start|>system\\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}"
    "{{ '# Tools\\n<tools>' }}{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}"
    "{{ '\\n</tools><|im_end|>\\n' }}"
    "{% elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
    "{% endif %}"
    "{% for message in messages %}{% set content = message.content or '' %}"
    "{% if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    "{{ '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}"
    "{% elif message.role == 'assistant' %}"
    "{% set reasoning = message.reasoning or message.reasoning_content or '' %}"
    "{% if not reasoning and '</think>' in content %}"
    "{% set reasoning = content.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% endif %}{% set said = content.split('</think>')[-1] | trim %}"
    "{{ '<|im_start|>assistant\\n' }}"
    "{% if reasoning and loop.index0 > last.user %}{{ '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}{% endif %}"
    "{{ said }}" + _CALLS + "{{ '<|im_end|>\\n' }}"
    "{% elif message.role == 'tool' %}"
    "{% if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}",
    tools=True,
    reasoning=True,
    goes_back=True,
)

HEADERS: Final = Template(
    "headers",
    "{{ '<|begin_of_text|>' }}"
    "{% if tools %}{{ '<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython\\nTools:' }}"
    "{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}{{ '<|eot_id|>' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + ('ipython' if message.role == 'tool' else message.role) }}"
    "{{ '<|end_header_id|>\\n\\n' + (message.content or '') | trim }}" + _CALLS + "{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    tools=True,
)

TURNS: Final = Template(
    "turns",
    "{{ '<bos>' }}{% set system = namespace(text='') %}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{% set system.text = system.text + (message.content | trim) + '\\n\\n' %}"
    "{% else %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}"
    "{% if message.role != 'assistant' and system.text %}{{ system.text }}{% set system.text = '' %}{% endif %}"
    "{{ (message.content or '') | trim + '<end_of_turn>\\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}",
)

INSTRUCTIONS: Final = Template(
    "instructions",
    "{{ '<s>' }}{% set seen = namespace(system='', last=-1) %}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{% set seen.system = seen.system + message.content + '\\n\\n' %}{% endif %}"
    "{% if message.role == 'user' %}{% set seen.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set content = message.content or '' %}"
    "{% if message.role == 'user' %}"
    "{% if loop.index0 == seen.last and tools %}{{ '[AVAILABLE_TOOLS]' }}{{ tools | tojson }}"
    "{{ '[/AVAILABLE_TOOLS]' }}{% endif %}"
    "{{ '[INST]' + (seen.system if loop.index0 == seen.last else '') + content + '[/INST]' }}"
    "{% elif message.role == 'assistant' %}{{ ' ' + content | trim }}" + _CALLS + "{{ '</s>' }}"
    "{% elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' + content + '[/TOOL_RESULTS]' }}{% endif %}{% endfor %}",
    tools=True,
    goes_back=True,
)

GATHERED: Final = Template(
    "gathered",
    "{% for message in messages if message.role == 'system' %}{{ '<|system|>\\n' + message.content + '\\n' }}"
    "{% endfor %}"
    "{% for message in messages if message.role != 'system' %}"
    "{{ '<|' + message.role + '|>\\n' + (message.content or '') + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}",
    goes_back=True,
)

FINAL: Final = Template(
    "final",
    "{{ '<|begin|>' }}"
    "{% for message in messages %}{% set content = message.content or '' %}"
    "{% if message.role == 'assistant' %}"
    "{{ '<|Assistant|>' + (content.split('</think>')[-1]) }}" + _CALLS + "{{ '<|end|>' }}"
    "{% elif message.role == 'tool' %}{{ '<|Output|>' + content }}"
    "{% else %}{{ ('<|User|>' if message.role == 'user' else '') + content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}",
    tools=True,
    reasoning=True,
)

NUMBERED: Final = Template(
    "numbered",
    "{{ messages | length }}{{ ' messages follow.\\n' }}"
    "{% for message in messages %}{{ loop.revindex ~ ' ' + message.role + ': ' + (message.content or '') + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
    goes_back=True,
)

TEMPLATES: Final = (CHATML, THINKING, HEADERS, TURNS, INSTRUCTIONS, GATHERED, FINAL, NUMBERED)
