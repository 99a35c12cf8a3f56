"""Who may report as a worker, and who may use the admin API.

admin_rights  which right a request to the admin API needs
authorizer    the question of access, and its answers
file_tokens   a token for each agent, from the fleet key, and one for the admin API, from a file
token_review  Kubernetes TokenReview and SubjectAccessReview
"""
