"""Batches: files of requests that are answered on the fleet's spare room. ``/v1/batches``, as OpenAI has it.

batch_status      the states of a batch, as a table
batch_metrics     how many batches there are, and what became of their lines
batch_object      the record of a batch, as clients see it; bounds
batch_lines       lines of an input file: what is wrong with one, which are alike; lines of output files
batch_openapi     both in the OpenAPI document
batch_repository  batches and their lines in SQL; the lease of who runs one
batch_routes      handlers of /v1/batches and what is below it
batch_store       calls of the repository from the event loop
batch_run         runs one batch, from its check to its files
batch_runner      claims batches and runs them
input_file        reads the lines of a kept file
line_results      what lines were answered, encrypted
line_request      one line, answered by the gateway as its tenant's request
result_files      writes the files of a batch that is over
spare_room        how many lines may run at once
validation        checks an input file, and orders its lines
"""
