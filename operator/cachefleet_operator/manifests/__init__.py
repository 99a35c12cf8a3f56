"""Manifests of the objects that a pool owns (pure).

agent_container   containers of cachefleet's image: agent, plugin copier
child_objects     every object that a pool owns, Deployment to Secret
claim_template    ResourceClaimTemplate of a pool, and its pods' claim
container         ports, paths and builders that the containers share
engine_container  container that runs vLLM
network_policy    who may connect to a pool's workers
pod               pod template of a pool's workers
pod_patch         strategic merge of ``spec.podTemplate``
pod_removals      removal by the paths of ``spec.podTemplate.remove``
pod_times         how long a pod may take to start and to end
protected_fields  fields of the pod that ``spec.podTemplate`` may not replace
weights_volumes   volumes made of images with weights, and their mounts
"""
