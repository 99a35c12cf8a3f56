"""Files that tenants keep for batches: ``/v1/files``, as OpenAI has it.

file_contents    where content is kept: one Protocol, and the database
file_object      the record of a file, as clients see it; bounds
file_repository  files and their parts in SQL
file_routes      handlers of /v1/files and what is below it
files_url        the URL of object storage, checked
kept_files       writes, reads and deletes files: encrypted, in parts, bounded by tenant
list_query       `after`, `limit` and `order` of OpenAI's lists
object_contents  content in object storage, by an optional library
object_exchange  whose object a request names, and its answer, for files and batches
upload           an upload, from its form to a kept file
"""
