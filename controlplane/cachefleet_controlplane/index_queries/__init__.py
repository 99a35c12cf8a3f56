"""Read-only queries of the index by other routers, in the shapes that these ask other indexes.

query_shapes      requests and answers of Dynamo's and Mooncake's queries (pure)
index_queries     looks token ids up for a tenant: how much of them each worker holds
query_routes      the routes on the internal port
"""
