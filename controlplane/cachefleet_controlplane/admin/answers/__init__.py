"""Forms that answers of several routes have.

client_presence  long work that ends when its client leaves
entity_tags   ETags: reading what has changed, changing what has not
json_lines    exports as JSON lines
pages         pages of lists that are sorted by a name
record_pages  pages of the decision log and the audit log, the last record first
"""
