"""What is shown of the admin API's items.

columns  columns of each kind of item
watch    ``--watch``: an answer that is asked for again and again
"""
