"""What a pool means for vLLM: how its engines are started, and whether they are as asked.

cache_flush           flushing of cached blocks: what a worker is asked, and answers
engine_arguments      vLLM's command line, environment and policy for a pool
engine_configuration  what a pool asks of an engine, what the engine has, and where they differ
executors             where the model runs, by the executor's name
first_process         what runs the program of an engine's container, and passes signals on to it
held_requests         a request that waits in its worker between rendering and answer: header and frames
answer_replay         streams that another worker goes on with: a record of token ids, and its replay
left_answers          answers whose clients left: a request's name, and what was made of it
suspensions           why an engine serves nothing though it answers its health checks
"""
