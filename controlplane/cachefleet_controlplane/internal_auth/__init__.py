"""Who may report as a worker, and who may use the admin API.

authorizer    the question of access, its answers, and how a request becomes a question
file_tokens   one token for agents and one for the admin API, from files
token_review  Kubernetes TokenReview and SubjectAccessReview
"""
