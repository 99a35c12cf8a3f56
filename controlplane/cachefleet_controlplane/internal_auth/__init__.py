"""Who may report as a worker, and who may use the admin API.

authorizer    the question of access, its answers, and how a request becomes a question
file_tokens   a token for each agent, from the fleet key, and one for the admin API, from a file
token_review  Kubernetes TokenReview and SubjectAccessReview
"""
