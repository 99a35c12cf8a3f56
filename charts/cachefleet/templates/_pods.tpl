{{/* What both Deployments' pods begin with; takes (dict "root" $ "part" "operator" "values" .Values.operator "account" name). */}}
{{- define "cachefleet.podMetadata" -}}
{{- /* Not the chart's version: pods are not to roll for it. */ -}}
{{- $own := set (fromYaml (include "cachefleet.selector" .)) "app.kubernetes.io/part-of" "cachefleet" -}}
labels:
  {{- toYaml (merge $own (default dict .values.podLabels) (default dict .root.Values.commonLabels)) | nindent 2 }}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "cachefleet.podSpec" -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- include "cachefleet.pullSecrets" .root }}
securityContext:
  {{- include "cachefleet.podSecurity" .root | nindent 2 }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.topologySpread }}
topologySpreadConstraints:
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "cachefleet.selector" $ | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
{{- end }}

{{- define "cachefleet.pullSecrets" }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Who pods are: fixed, or left to the cluster, as OpenShift demands. Takes the root. */}}
{{- define "cachefleet.podIdentity" -}}
{{- if eq .Values.podIdentity "auto" -}}
{{ ternary "cluster" "fixed" (.Capabilities.APIVersions.Has "security.openshift.io/v1") }}
{{- else -}}
{{ .Values.podIdentity }}
{{- end }}
{{- end }}

{{/* Pod security `restricted`, both halves. Takes the root. */}}
{{- define "cachefleet.podSecurity" -}}
runAsNonRoot: true
{{- if eq (include "cachefleet.podIdentity" .) "fixed" }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- end }}

{{- define "cachefleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* startupProbe, livenessProbe and readinessProbe at one port: (dict "port" name "scheme" "HTTP" or "HTTPS"). */}}
{{- define "cachefleet.probes" -}}
{{- $at := printf "port: %s%s" .port (ternary ", scheme: HTTPS" "" (eq .scheme "HTTPS")) }}
startupProbe:
  httpGet: {path: /healthz, {{ $at }}}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, {{ $at }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, {{ $at }}}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{/* A list of variables: "own" (YAML of a list), then "extra", which stands above what has the same name. */}}
{{- define "cachefleet.env" -}}
{{- $extra := .extra }}
{{- $names := list }}
{{- range $extra }}{{ $names = append $names .name }}{{ end }}
{{- $all := list }}
{{- range fromYamlArray .own }}
{{- if not (has .name $names) }}{{ $all = append $all . }}{{ end }}
{{- end }}
{{- toYaml (concat $all $extra) }}
{{- end }}
