{{/* Names and labels. RayService names longer than 47 characters are refused by KubeRay, so 40 leaves room for suffixes. */}}
{{- define "peagle.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "peagle.labels" -}}
app.kubernetes.io/name: peagle
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "peagle.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
Selector of this release's pods. Not `app.kubernetes.io/name`: on Ray pods KubeRay sets that label, and its head service
selects the head by it. Not the instance alone: an operator in the same release has the same instance.
*/}}
{{- define "peagle.selector" -}}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/part-of: peagle
{{- end -}}

{{/* Labels of a pod: (dict "root" $ "component" "head"), with its own "labels", which take precedence over common ones. */}}
{{- define "peagle.podLabels" -}}
{{ include "peagle.selector" .root }}
app.kubernetes.io/component: {{ .component }}
{{- $own := default dict .labels }}
{{- with merge (deepCopy $own) (default dict .root.Values.commonLabels) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Metadata of an object: (dict "root" $ "suffix" "-redis") */}}
{{- define "peagle.metadata" -}}
name: {{ include "peagle.fullname" .root }}{{ .suffix }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "peagle.labels" .root | nindent 2 }}
{{- end -}}

{{/* Annotations of objects that exist only during an uninstall, in order of weight. */}}
{{- define "peagle.beforeDelete" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "peagle.image" -}}
{{- $image := .Values.image -}}
{{- $variant := "cpu" -}}
{{- range $group := include "peagle.groups" . | fromYaml }}{{- if $group.gpus }}{{- $variant = "gpu" }}{{- end }}{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (printf "%s-%s" .Chart.AppVersion (default $variant $image.variant))) -}}
{{- end -}}
{{- end -}}

{{- define "peagle.authSecret" -}}
{{- .Values.ray.auth.existingSecret | default (printf "%s-ray-auth" (include "peagle.fullname" .)) -}}
{{- end -}}

{{/* The maps `models` and `workerGroups`; those of the embedded model if both are empty. */}}
{{- define "peagle.given" -}}
{{- if or .Values.models .Values.workerGroups -}}
{{- pick .Values "models" "workerGroups" | toYaml -}}
{{- else -}}
{{- .Files.Get "values/embedded-cpu.yaml" -}}
{{- end -}}
{{- end -}}

{{/* CPUs as Ray counts them, from a Kubernetes quantity: rounded up to whole CPUs, as in KubeRay. */}}
{{- define "peagle.wholeCpus" -}}
{{- divf (include "peagle.milliCpus" .) 1000 | ceil | int -}}
{{- end -}}

{{/* Thousandths of a CPU, from a Kubernetes quantity. */}}
{{- define "peagle.milliCpus" -}}
{{- $amount := toString . -}}
{{- if hasSuffix "m" $amount -}}
{{- trimSuffix "m" $amount | int -}}
{{- else -}}
{{- mulf $amount 1000 | ceil | int -}}
{{- end -}}
{{- end -}}

{{/* Requests and limits with every quantity as text, because a RayService does not accept fractional numbers. */}}
{{- define "peagle.resources" -}}
{{- $texts := dict -}}
{{- range $part, $amounts := . -}}
  {{- $_ := set $texts $part dict -}}
  {{- range $resource, $amount := $amounts -}}
    {{- $_ := set (get $texts $part) $resource (toString $amount) -}}
  {{- end -}}
{{- end -}}
{{- toYaml $texts -}}
{{- end -}}

{{/*
Every worker group with its defaults, as a map. A group's field replaces the whole default. `rayCpus` is `cpus` as Ray
counts them.
*/}}
{{- define "peagle.groups" -}}
{{- $groups := dict -}}
{{- range $name, $group := (include "peagle.given" . | fromYaml).workerGroups -}}
  {{- $merged := deepCopy $.Values.workerGroupDefaults -}}
  {{- range $field, $value := $group -}}
    {{- $_ := set $merged $field $value -}}
  {{- end -}}
  {{- $_ := set $merged "rayCpus" (include "peagle.wholeCpus" $merged.cpus | int) -}}
  {{- if $merged.enabled -}}{{- $_ := set $groups $name $merged -}}{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}

{{/* Every enabled model, as a map of deployments with defaults for all missing fields. */}}
{{- define "peagle.deployments" -}}
{{- $defaults := (.Files.Get "files/deployment.yaml" | fromYaml).defaults -}}
{{- $deployments := dict -}}
{{- range $key, $model := (include "peagle.given" . | fromYaml).models -}}
  {{- if ne $model.enabled false -}}
    {{- $deployment := deepCopy $model.deployment -}}
    {{- range $section, $fields := $defaults -}}
      {{- $written := dict -}}
      {{- if hasKey $deployment $section -}}{{- $written = get $deployment $section -}}{{- end -}}
      {{- range $field, $value := $fields -}}
        {{- if not (hasKey $written $field) -}}{{- $_ := set $written $field $value -}}{{- end -}}
      {{- end -}}
      {{- $_ := set $deployment $section $written -}}
    {{- end -}}
    {{- $_ := set $deployments $key $deployment -}}
  {{- end -}}
{{- end -}}
{{- toYaml $deployments -}}
{{- end -}}

{{- define "peagle.serveConfig" -}}
proxy_location: EveryNode
http_options:
  host: 0.0.0.0
  port: 8000
logging_config:
  enable_access_log: false
applications:
  - name: peagle
    route_prefix: /
    import_path: peagle.serve.app:build_app
    args:
      deployments:
        {{- range $model := (include "peagle.given" . | fromYaml).models }}
        {{- if ne $model.enabled false }}
        - {{ toYaml $model.deployment | nindent 10 | trim }}
        {{- end }}
        {{- end }}
      {{- $api := deepCopy (default dict .Values.api) }}
      {{- if .Values.apiKeys.existingSecret }}
      {{- $_ := set $api "keys_file" "/etc/peagle/keys" }}
      {{- end }}
      {{- with $api }}
      api:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}

{{/* Pods that the `restricted` pod security level refuses, each with the reason; empty if there are none. */}}
{{- define "peagle.unrestricted" -}}
{{- range $name, $group := include "peagle.groups" . | fromYaml }}
{{- if $group.rdmaDevices }}
worker group {{ $name }}: RDMA needs the capability IPC_LOCK
{{- end }}
{{- if eq $.Values.modelCache.type "hostPath" }}
worker group {{ $name }}: modelCache.type hostPath mounts a folder of the node
{{- end }}
{{- end }}
{{- end -}}
