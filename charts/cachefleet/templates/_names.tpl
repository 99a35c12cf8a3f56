{{- define "cachefleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Begins every name; short enough for -controlplane-headless after it. */}}
{{- define "cachefleet.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Of cluster-wide objects: two releases may differ in nothing but their namespace. */}}
{{- define "cachefleet.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "cachefleet.fullname" .) }}
{{- end }}

{{/* What a part's pods are found by. Takes (dict "root" $ "part" "operator"), as all below that name a part. */}}
{{- define "cachefleet.selector" -}}
app.kubernetes.io/name: {{ include "cachefleet.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* On every object; "part" and "more" (a dict) may be left out. Ours win, then "more", then those of all objects. */}}
{{- define "cachefleet.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" (include "cachefleet.name" .root)
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/part-of" "cachefleet"
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") }}
{{- with .part }}
{{- $_ := set $own "app.kubernetes.io/component" . }}
{{- end }}
{{- toYaml (merge $own (default dict .more) (default dict .root.Values.commonLabels)) }}
{{- end }}

{{- define "cachefleet.operatorAccount" -}}
{{- $account := .Values.operator.serviceAccount }}
{{- default (ternary (printf "%s-operator" (include "cachefleet.fullname" .)) "default" $account.create) $account.name }}
{{- end }}

{{- define "cachefleet.controlPlaneAccount" -}}
{{- $account := .Values.controlPlane.serviceAccount }}
{{- default (ternary (printf "%s-controlplane" (include "cachefleet.fullname" .)) "default" $account.create) $account.name }}
{{- end }}

{{- define "cachefleet.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}
{{- else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end }}
{{- end }}
{{- end }}

{{/* Where an autoscaler decides, there may be several. */}}
{{- define "cachefleet.controlPlaneReplicas" -}}
{{- default 2 .Values.controlPlane.replicas }}
{{- end }}

{{/* Secret of the gateway's certificate; empty where its port is plain. */}}
{{- define "cachefleet.gatewayTls" -}}
{{- (.Values.controlPlane.gateway.tls | default dict).secretName }}
{{- end }}

{{- define "cachefleet.gatewayScheme" -}}
{{ ternary "http" "https" (empty (include "cachefleet.gatewayTls" .)) }}
{{- end }}

{{- define "cachefleet.gatewayUrl" -}}
{{ include "cachefleet.gatewayScheme" . }}://{{ include "cachefleet.fullname" . }}-gateway.{{ .Release.Namespace }}.svc:{{ .Values.controlPlane.gateway.service.port }}
{{- end }}

{{/* Whose certificates are used: off, issued (by the operator) or existing. */}}
{{- define "cachefleet.tls" -}}
{{- $existing := .Values.tls.existing | default dict }}
{{- if and $existing.workerSecret (not $existing.controlPlaneSecret) }}
{{- fail "tls.existing.workerSecret: is of no use without tls.existing.controlPlaneSecret: certificates are all the operator's, or none" }}
{{- end }}
{{- ternary (ternary "existing" "issued" (not (empty $existing.controlPlaneSecret))) "off" .Values.tls.enabled }}
{{- end }}

{{/* Secret of the control plane's certificate. */}}
{{/* Control planes of one namespace have certificates of their own, which name their own Services. */}}
{{- define "cachefleet.controlPlaneTls" -}}
{{- $name := default "default" .Values.controlPlane.name }}
{{- $own := ternary "cachefleet-controlplane-tls" (printf "cachefleet-%s-controlplane-tls" $name) (eq $name "default") }}
{{- default $own (.Values.tls.existing | default dict).controlPlaneSecret }}
{{- end }}

{{- define "cachefleet.scheme" -}}
{{ ternary "https" "http" .Values.tls.enabled }}
{{- end }}

{{/* How Prometheus verifies: (dict "root" $ "name" the name in the certificate). Nothing without TLS. */}}
{{- define "cachefleet.scrape" -}}
{{- if .root.Values.tls.enabled -}}
scheme: https
tlsConfig:
  serverName: {{ .name }}
  ca:
    {{- if eq (include "cachefleet.tls" .root) "issued" }}
    configMap: {name: cachefleet-ca, key: ca.crt}
    {{- else }}
    secret: {name: {{ include "cachefleet.controlPlaneTls" .root }}, key: ca.crt}
    {{- end }}
{{- end }}
{{- end }}

{{/* Whether InferencePools are made and InferenceObjectives read; "" where they are not. */}}
{{- define "cachefleet.inferencePools" -}}
{{- $picker := .Values.controlPlane.picker -}}
{{- if and $picker.enabled $picker.inferencePools }}true{{ end -}}
{{- end }}
