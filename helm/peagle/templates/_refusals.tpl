{{/*
Stops a release with invalid values and lists every problem: each line is the path of a value, the problem, and the fix.
The schema checks single fields; this checks combinations.
*/}}
{{- define "peagle.refuse" -}}
{{- /* The checks below read these values. */}}
{{- $problems := include "peagle.problems.unset" . | fromYamlArray -}}
{{- if not $problems -}}
{{- $problems = concat
  (include "peagle.problems.models" . | fromYamlArray)
  (include "peagle.problems.placement" . | fromYamlArray)
  (include "peagle.problems.groups" . | fromYamlArray)
  (include "peagle.problems.storage" . | fromYamlArray)
  (include "peagle.problems.access" . | fromYamlArray)
  (include "peagle.problems.tracing" . | fromYamlArray)
  (include "peagle.problems.labels" . | fromYamlArray)
  (include "peagle.problems.drain" . | fromYamlArray)
-}}
{{- end -}}
{{- if $problems -}}
{{- fail (printf "these values are invalid:\n  %s" (join "\n  " $problems)) -}}
{{- end -}}
{{- end -}}

{{/* Null unsets a value. That is allowed only for values that may be empty. */}}
{{- define "peagle.problems.unset" -}}
{{- range $path, $default := .Files.Get "files/required.yaml" | fromYaml -}}
{{- $value := $.Values -}}
{{- range $key := splitList "." $path -}}
{{- if kindIs "map" $value }}{{- $value = get $value $key }}{{- end -}}
{{- end -}}
{{- if or (kindIs "invalid" $value) (eq (toString $value) "") }}
- {{ printf "%s is unset, but a value such as %v is required. Set it, or remove the null; with --reuse-values, use --reset-then-reuse-values to get a newer chart's defaults." $path $default | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "peagle.problems.models" -}}
{{- $owned := (.Files.Get "files/deployment.yaml" | fromYaml).ownedArguments -}}
{{- $deployments := include "peagle.deployments" . | fromYaml -}}
{{- if not $deployments }}
- "models: no model is enabled. Pass a ready file, such as -f helm/peagle/values/gpt-oss-20b.yaml, or write one."
{{- end }}
{{- $names := dict -}}
{{- range $key, $deployment := $deployments }}
{{- $at := printf "models.%s.deployment" $key -}}
{{- if hasKey $names $deployment.name }}
- {{ printf "%s.name is %s, the same as models.%s.deployment.name. Give each its own name." $at $deployment.name (get $names $deployment.name) | quote }}
{{- end }}
{{- $_ := set $names $deployment.name $key }}
{{- range $part := list "target" "drafter" }}
{{- with get $deployment $part }}
{{- if and .revision (regexMatch "^[./~]" .source) }}
- {{ printf "%s.%s.revision is %s, but the source is a folder, which has no revision. Remove it." $at $part .revision | quote }}
{{- else if not (regexMatch "^([./~]|[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?$)" .source) }}
- {{ printf "%s.%s.source is %s: it is neither a repository nor the path of a folder. Write org/name, or ./%s for a folder." $at $part .source .source | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq $deployment.resources.accelerator "cpu") (gt (int $deployment.resources.tensor_parallel_size) 1) }}
- {{ printf "%s.resources.tensor_parallel_size is %d, but accelerator is cpu. Write 1, or accelerator: gpu." $at (int $deployment.resources.tensor_parallel_size) | quote }}
{{- end }}
{{- if and (eq $deployment.resources.accelerator "cpu") (gt (int (default 1 $deployment.engine.pipeline_parallel_size)) 1) }}
- {{ printf "%s.engine.pipeline_parallel_size is %d, but accelerator is cpu. Write 1, or accelerator: gpu." $at (int $deployment.engine.pipeline_parallel_size) | quote }}
{{- end }}
{{- if and (eq $deployment.resources.accelerator "cpu") $deployment.resources.accelerator_type }}
- {{ printf "%s.resources.accelerator_type is %s, but accelerator is cpu. Write null, or accelerator: gpu." $at $deployment.resources.accelerator_type | quote }}
{{- end }}
{{- if eq (int $deployment.routing.max_queued_requests) 0 }}
- {{ printf "%s.routing.max_queued_requests is 0, but Ray Serve does not support a queue of 0. Write 1 or more, or -1 for no limit." $at | quote }}
{{- end }}
{{- $depth := $deployment.speculation }}
{{- if and $depth.adaptive (not $depth.live_depth) }}
- {{ printf "%s.speculation.adaptive is true while live_depth is false. Write live_depth: true, or adaptive: false." $at | quote }}
{{- end }}
{{- $pools := eq (toString $deployment.engine.runner) "pooling" }}
{{- if and $pools $deployment.drafter }}
- {{ printf "%s.drafter is set, but a model that embeds or scores text (engine.runner is pooling) generates no tokens to draft. Remove drafter, or engine.runner." $at | quote }}
{{- end }}
{{- if and $depth.enabled (not $pools) }}
{{- $method := (default dict $deployment.drafter).method | default "p-eagle" -}}
{{- $adapts := and $depth.live_depth (ternary (eq $method "p-eagle") $depth.adaptive (kindIs "invalid" $depth.adaptive)) -}}
{{- if and $depth.inter_token_s_max (not $adapts) }}
- {{ printf "%s.speculation.inter_token_s_max is %v, but depth is not adaptive. Write %s: true." $at $depth.inter_token_s_max (ternary "adaptive" "live_depth" $depth.live_depth) | quote }}
{{- end }}
{{- if not $deployment.drafter }}
- {{ printf "%s.drafter is missing while speculation.enabled is true. Add a drafter, or write speculation: {enabled: false}." $at | quote }}
{{- else if gt (int $depth.depth_max) (int $deployment.drafter.trained_depth) }}
- {{ printf "%s.speculation.depth_max is %d, above drafter.trained_depth, which is %d. Lower it to %d." $at (int $depth.depth_max) (int $deployment.drafter.trained_depth) (int $deployment.drafter.trained_depth) | quote }}
{{- end }}
{{- end }}
{{- if gt (int $depth.depth_static) (int $depth.depth_max) }}
- {{ printf "%s.speculation.depth_static is %d, above depth_max, which is %d. Lower it to %d." $at (int $depth.depth_static) (int $depth.depth_max) (int $depth.depth_max) | quote }}
{{- end }}
{{- if gt (int $deployment.replicas.min) (int $deployment.replicas.max) }}
- {{ printf "%s.replicas.max is %d, below replicas.min, which is %d. Raise it to %d." $at (int $deployment.replicas.max) (int $deployment.replicas.min) (int $deployment.replicas.min) | quote }}
{{- end }}
{{- range $argument, $value := $deployment.engine }}
{{- if eq $argument "data_parallel_size" }}
- {{ printf "%s.engine.data_parallel_size is %v: with data parallel ranks in one engine, live depth would let them diverge. Remove it; replicas.min and replicas.max give the same throughput." $at $value | quote }}
{{- else if hasKey $owned $argument }}
- {{ printf "%s.engine.%s is set by %s. Remove it here." $at $argument (get $owned $argument) | quote }}
{{- else if not (regexMatch "^[A-Za-z][A-Za-z0-9_]*$" $argument) }}
- {{ printf "%s.engine.%s is not an engine argument. Write it as vLLM names it in Python, such as max_model_len." $at $argument | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Whether the worker groups have capacity for the replicas of each model. */}}
{{- define "peagle.problems.placement" -}}
{{- $groups := include "peagle.groups" . | fromYaml -}}
{{- $needed := dict -}}
{{- range $key, $deployment := include "peagle.deployments" . | fromYaml }}
{{- $at := printf "models.%s.deployment.resources" $key -}}
{{- $resources := $deployment.resources -}}
{{- $ranks := int $resources.tensor_parallel_size -}}
{{- $type := default "" $resources.accelerator_type -}}
{{- $widest := 0 -}}
{{- range $group := $groups }}
{{- if or (ne $resources.accelerator "gpu") (not $type) (eq $type $group.acceleratorType) }}
{{- $widest = max $widest (int $group.rayCpus) -}}
{{- end }}
{{- end }}
{{- if and $widest (gt (float64 $resources.cpus) (float64 $widest)) }}
- {{ printf "%s.cpus is %v, but the largest suitable pod has %d (workerGroups.*.cpus). A replica starts in one pod: lower it, or raise cpus up to the node's." $at $resources.cpus $widest | quote }}
{{- end }}
{{- if eq $resources.accelerator "gpu" }}
{{- $largest := 0 -}}
{{- range $group := $groups }}
{{- if and $group.gpus (or (not $type) (eq $type $group.acceleratorType)) }}
{{- $largest = max $largest (int $group.gpus) -}}
{{- end }}
{{- end }}
{{- if not $largest }}
- {{ printf "%s needs a GPU%s, but no group of workerGroups has one. Add a group with gpus and acceleratorType: %s." $at (ternary (printf " of type %s" $type) "" (ne $type "")) (default "..." $type) | quote }}
{{- else if gt $ranks $largest }}
- {{ printf "%s.tensor_parallel_size is %d, but the largest suitable pod has %d GPUs (workerGroups.*.gpus). A replica stays within one node: lower it to %d, or raise gpus up to the node's." $at $ranks $largest $largest | quote }}
{{- else }}
{{- $_ := set $needed $type (add (default 0 (get $needed $type)) (mul $ranks (int (default 1 $deployment.engine.pipeline_parallel_size)) (int $deployment.replicas.min))) -}}
{{- end }}
{{- end }}
{{- end }}
{{- range $type, $count := $needed }}
{{- $present := 0 -}}
{{- range $group := $groups }}
{{- if or (not $type) (eq $type $group.acceleratorType) }}
{{- $present = add $present (mul (int $group.gpus) (int $group.maxReplicas)) -}}
{{- end }}
{{- end }}
{{- if gt (int $count) (int $present) }}
- {{ printf "models: the minimum number of replicas (replicas.min) needs %d GPUs%s, but workerGroups have at most %d (gpus * maxReplicas). Raise maxReplicas, or lower replicas.min." (int $count) (ternary (printf " of type %s" $type) "" (ne $type "")) (int $present) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "peagle.problems.groups" -}}
{{- $groups := include "peagle.groups" . | fromYaml -}}
{{- if not $groups }}
- "workerGroups: it is empty. Pass a ready file, or add a group, such as workerGroups: {b200: {}}."
{{- end }}
{{- $cpus := 0 -}}
{{- $rounded := "" -}}
{{- range $name, $group := $groups }}
{{- $at := printf "workerGroups.%s" $name -}}
{{- $cpus = add $cpus (mul (int $group.rayCpus) (int $group.maxReplicas)) -}}
{{- if ne (include "peagle.milliCpus" $group.cpus | int) (mul (int $group.rayCpus) 1000 | int) }}
{{- $rounded = printf "%s Ray counts whole CPUs, so %s.cpus %v counts as %d: to share a node's CPUs, write whole cpus and cpuRequest: %v." $rounded $at $group.cpus (int $group.rayCpus) $group.cpus -}}
{{- end }}
{{- if and $group.cpuRequest (gt (include "peagle.milliCpus" $group.cpuRequest | int) (include "peagle.milliCpus" $group.cpus | int)) }}
- {{ printf "%s.cpuRequest is %v, above cpus, which is %v and the pod's limit. Lower it, or raise cpus." $at $group.cpuRequest $group.cpus | quote }}
{{- end }}
{{- if gt (int $group.minReplicas) (int $group.maxReplicas) }}
- {{ printf "%s.maxReplicas is %d, below minReplicas, which is %d. Raise it to %d." $at (int $group.maxReplicas) (int $group.minReplicas) (int $group.minReplicas) | quote }}
{{- else if and (not $.Values.autoscaling.enabled) (ne (int $group.minReplicas) (int $group.maxReplicas)) }}
- {{ printf "%s.maxReplicas is %d and minReplicas %d, but autoscaling.enabled is false. Write the same number, or enable autoscaling." $at (int $group.maxReplicas) (int $group.minReplicas) | quote }}
{{- end }}
{{- end }}
{{- $ingresses := int (dig "ingresses" 1 (.Values.api | default dict)) -}}
{{- $needed := float64 $ingresses -}}
{{- range $deployment := include "peagle.deployments" . | fromYaml }}
{{- $needed = addf $needed (mulf (float64 $deployment.resources.cpus) (float64 $deployment.replicas.min)) -}}
{{- end }}
{{- if and $groups (gt $needed (float64 $cpus)) }}
- {{ printf "workerGroups: they have at most %d CPUs (cpus * maxReplicas), but the minimum number of replicas needs %v, with %d for the ingress. Raise cpus or maxReplicas.%s" (int $cpus) $needed $ingresses $rounded | quote }}
{{- end }}
{{- end -}}

{{- define "peagle.problems.storage" -}}
{{- $cache := .Values.modelCache -}}
{{- if and (eq $cache.type "hostPath") (not $cache.hostPath) }}
- "modelCache.hostPath is empty while modelCache.type is hostPath. Name a folder of the nodes, such as /var/lib/peagle."
{{- end }}
{{- $security := default dict .Values.podSecurity -}}
{{- if and (eq $cache.type "hostPath") (not (and (get $security "runAsUser") (regexMatch "^[0-9]" (toString (get $security "runAsGroup"))))) }}
- "podSecurity.runAsUser or runAsGroup is unset while modelCache.type is hostPath, whose folder must be owned by them. Set both, or another type."
{{- end }}
{{- if eq .Values.ray.upgradeStrategy "NewClusterWithIncrementalUpgrade" }}
{{- range $option := list "gatewayClassName" "stepSizePercent" "intervalSeconds" }}
{{- if not (hasKey $.Values.ray.upgradeOptions $option) }}
- {{ printf "ray.upgradeOptions.%s is missing while ray.upgradeStrategy is NewClusterWithIncrementalUpgrade. Write it." $option | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq .Values.gcs.store "external") (not .Values.gcs.external.address) }}
- "gcs.external.address is empty while gcs.store is external. Write host:port of your Redis, or gcs.store: bundled."
{{- end }}
{{- end -}}

{{- define "peagle.problems.access" -}}
{{- if and .Values.ingress.enabled .Values.gatewayRoute.enabled }}
- "gatewayRoute.enabled and ingress.enabled are both true. Disable one of them."
{{- end }}
{{- if and .Values.gatewayRoute.enabled (not .Values.gatewayRoute.gateway.name) }}
- "gatewayRoute.gateway.name is empty while gatewayRoute.enabled is true. Name the Gateway that the route joins."
{{- end }}
{{- if and .Values.ingress.enabled .Values.ingress.tlsSecret (not .Values.ingress.host) }}
- "ingress.host is empty while ingress.tlsSecret is set. Name the host that the certificate is for."
{{- end }}
{{- if and .Values.monitoring.alerts.enabled (eq (toString (default dict .Values.api).metrics) "false") }}
- "api.metrics is false while monitoring.alerts.enabled is true: the rules would report missing metrics as an outage. Disable one of them."
{{- end }}
{{- end -}}

{{- define "peagle.problems.tracing" -}}
{{- with .Values.tracing }}
{{- $path := (urlParse (default "" .endpoint)).path | trimAll "/" -}}
{{- if and .endpoint $path (eq .protocol "grpc") }}
- {{ printf "tracing.endpoint is %s, but gRPC has no path. Write tracing.protocol: http/protobuf, or remove the path." .endpoint | quote }}
{{- else if and .endpoint (not $path) (eq .protocol "http/protobuf") }}
- {{ printf "tracing.endpoint is %s, without the path for spans. Add it: /v1/traces for most collectors." .endpoint | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Serve stops a replica before its node's deadline, by the longest time that a request may take. */}}
{{- define "peagle.problems.drain" -}}
{{- $request := float64 (default 600 (default dict .Values.api).request_timeout_s) -}}
{{- if lt (float64 .Values.drain.timeoutSeconds) $request }}
- {{ printf "drain.timeoutSeconds is %d, but a request may take %v s (api.request_timeout_s). Raise it to that, or lower api.request_timeout_s." (int .Values.drain.timeoutSeconds) $request | quote }}
{{- end }}
{{- end -}}

{{/* The chart's objects select their pods by these labels, so other values would break them. */}}
{{- define "peagle.problems.labels" -}}
{{- $given := dict "commonLabels" .Values.commonLabels "head.labels" .Values.head.labels -}}
{{- range $name, $group := include "peagle.groups" . | fromYaml }}{{- $_ := set $given (printf "workerGroups.%s.labels" $name) $group.labels }}{{- end -}}
{{- range $at, $labels := $given }}
{{- range $name, $_ := $labels }}
{{- if regexMatch "^(app\\.kubernetes\\.io/(name|instance|version|managed-by|part-of|component)|helm\\.sh/chart|ray\\.io/.*)$" $name }}
- {{ printf "%s has %s, which the chart sets itself. Remove it, or use a prefix of your own." $at $name | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
