"""The resource PrefixCachePool: schema, validation of manifests, CustomResourceDefinition.

adapter_options      how vLLM is told of adapters: its argument, its variable; where weights are mounted
adapter_reports      adapters that workers are to have, and have
admitted             which spec is in force: the last one the operator admitted
crd                  CustomResourceDefinition made from the models
managed_arguments    arguments and variables of the engine that a pool may not set, in any spelling
manifest             YAML to plain values
model_names          which namespace a model name belongs to
policy               sections on caches and requests: budget, hits, admission, tenants, InferencePool
validation_problems  problems of a pool file as text
crd_schema           pydantic models as a Kubernetes structural schema
section              base class of sections, rules across fields, bounded types
spec                 PrefixCachePool and its spec; reads pools
status               status as the operator writes it
weights_image        weights in an OCI image, as a source names them
worker_pods          which pods are a pool's own by their names
worker_spec          sections on workers: model, engine, device
"""
