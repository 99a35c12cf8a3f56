{{/*
What the operator may do in the namespaces of pools and, of it, in its own; e2e/cluster/rights.py is the same list, held
to the API server's audit log, and tests/chart/test_rights.py compares the two.
*/}}
{{- define "cachefleet.operatorRules" -}}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, get, list, patch, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, patch, watch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, get, update]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [create, get, list, patch, watch]
- apiGroups: [""]
  resources: [services]
  verbs: [create, get, list, patch, watch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [create, get, list, patch, watch]
# To end the pods that another writer's template of a Deployment has started.
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list]
- apiGroups: [apps]
  resources: [replicasets/scale]
  verbs: [patch]
# To name the one that scales a Deployment in place of its pool.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list]
- apiGroups: [cachefleet.io]
  resources: [prefixcachepools]
  verbs: [get, list, watch]
- apiGroups: [cachefleet.io]
  resources: [prefixcachepools/status]
  verbs: [patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, get, list, patch, watch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, get, list, patch, watch]
# Of pools whose devices are claimed.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [list]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [create, delete, get, list, patch]
{{- if include "cachefleet.inferencePools" . }}
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [create, delete, list, patch]
{{- end }}
{{- if not .Values.namespaces }}
# Of the whole cluster: the memory of claimed devices, and their taints.
- apiGroups: [resource.k8s.io]
  resources: [deviceclasses]
  verbs: [get]
- apiGroups: [resource.k8s.io]
  resources: [resourceslices, devicetaintrules]
  verbs: [list]
{{- end }}
{{- end }}

{{/* The Lease; the fleet's key, made once, read ever after; certificates, and a ConfigMap of what to trust. */}}
{{- define "cachefleet.operatorHomeRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create, get, update]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [cachefleet-fleet-key]
  verbs: [get]
{{- if eq (include "cachefleet.tls" .) "issued" }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [cachefleet-ca, {{ include "cachefleet.controlPlaneTls" . }}]
  verbs: [get, update]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, get, patch]
{{- else if .Values.tls.enabled }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "cachefleet.controlPlaneTls" . }}]
  verbs: [get]
{{- end }}
{{- end }}

{{- define "cachefleet.controlPlaneRules" -}}
- apiGroups: [cachefleet.io]
  resources: [prefixcachepools]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- if include "cachefleet.inferencePools" . }}
- apiGroups: [inference.networking.x-k8s.io]
  resources: [inferenceobjectives]
  verbs: [list, watch]
{{- end }}
{{- end }}

{{/* What says that keys were made, by name: see persistence.yaml. */}}
{{- define "cachefleet.controlPlaneHomeRules" -}}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [{{ include "cachefleet.accessMarker" . }}]
  verbs: [get, patch]
{{- end }}

{{/*
The ConfigMap that says that keys were made; "" where it cannot be read and written, or the store ends with its pod.
*/}}
{{- define "cachefleet.accessMarker" -}}
{{- $own := .Values.controlPlane }}
{{- if and .Values.rbac.create (or $own.persistence.enabled $own.databaseUrlSecretRef.name) }}
{{- include "cachefleet.fullname" . }}-access
{{- end }}
{{- end }}

{{/* One subject of a binding: an account of this release. */}}
{{- define "cachefleet.subject" -}}
- kind: ServiceAccount
  name: {{ .account }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}
