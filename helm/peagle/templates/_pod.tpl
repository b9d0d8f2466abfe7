{{/* Common parts of head and worker pods. */}}

{{- define "peagle.podSecurityContext" -}}
runAsNonRoot: true
{{- range $field := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- $id := get (default dict $.Values.podSecurity) $field }}
{{- if regexMatch "^[0-9]" (toString $id) }}
{{ $field }}: {{ int64 $id }}
{{- end }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "peagle.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "peagle.imageFields" -}}
image: {{ include "peagle.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- define "peagle.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Environment of a Ray container: (dict "root" $ "env" a group's own). Later entries take precedence. */}}
{{- define "peagle.env" -}}
{{- $values := .root.Values -}}
{{- $env := dict
  "RAY_USAGE_STATS_ENABLED" "0"
  "VLLM_NO_USAGE_STATS" "1"
  "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH" "peagle.api.edge.middlewares"
  "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S" "30"
  "RAY_SERVE_CONTROL_LOOP_INTERVAL_S" "0.5"
  "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS" "1000"
  "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD" "0"
  "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP" "0"
  "RAY_SERVE_USE_GRPC_BY_DEFAULT" "1"
  "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH" "2147483647"
  "grpc_proxy" ""
  "RAY_worker_niceness" "0"
  "RAY_ROTATION_MAX_BYTES" "67108864"
  "RAY_ROTATION_BACKUP_COUNT" "1"
  "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO" "0"
  "HOME" "/var/cache/peagle"
  "USER" "peagle"
  "XDG_CACHE_HOME" "/var/cache/peagle"
  "HF_HOME" "/var/cache/peagle/huggingface"
-}}
{{- with $values.tracing.endpoint }}
{{- $env = merge $env (dict
  "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" .
  "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" $values.tracing.protocol
  "OTEL_SERVICE_NAME" "peagle"
  "OTEL_TRACES_SAMPLER" "parentbased_traceidratio"
  "OTEL_TRACES_SAMPLER_ARG" (toString $values.tracing.samplingRatio)
  "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH" "peagle.tracing:processors"
  "RAY_SERVE_TRACING_SAMPLING_RATIO" "0"
) }}
{{- end }}
{{- range $name, $value := $values.env }}{{- $_ := set $env $name $value }}{{- end -}}
{{- range $name, $value := .env }}{{- $_ := set $env $name $value }}{{- end -}}
{{- /* Each name has one value: the secret's takes precedence. */}}
{{- if $values.huggingFace.existingSecret }}{{- $_ := unset $env "HF_TOKEN" }}{{- end -}}
{{- range $name, $value := $env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with $values.huggingFace.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $values.huggingFace.tokenKey }}
{{- end }}
{{- end -}}

{{- define "peagle.envFrom" -}}
{{- with .Values.envFromSecrets }}
envFrom:
  {{- range . }}
  - secretRef: {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end -}}

{{/*
A folder that the kubelet creates belongs to root, and fsGroup does not apply to it. A folder with the right owner is not
changed: its file system may not allow even root to change it.
*/}}
{{- define "peagle.ownCache" -}}
{{- $owner := printf "%d:%d" (int64 .Values.podSecurity.runAsUser) (int64 .Values.podSecurity.runAsGroup) -}}
- name: own-cache
  {{- include "peagle.imageFields" . | nindent 2 }}
  command:
    - sh
    - -c
    - test "$(stat -c %u:%g /var/cache/peagle)" = {{ $owner }} || chown {{ $owner }} /var/cache/peagle
  securityContext:
    runAsNonRoot: false
    runAsUser: 0
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
      add: [CHOWN]
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - name: model-cache
      mountPath: /var/cache/peagle
{{- end -}}

{{- define "peagle.volumeMounts" -}}
- name: shared-mem
  mountPath: /dev/shm
- name: tmp
  mountPath: /tmp
- name: model-cache
  mountPath: /var/cache/peagle
- name: api-keys
  mountPath: /etc/peagle
  readOnly: true
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Volumes of a pod: (dict "root" $ "sharedMemory" "1Gi" "isHead" true) */}}
{{- define "peagle.volumes" -}}
{{- $values := .root.Values -}}
{{- $cache := $values.modelCache -}}
- name: shared-mem
  emptyDir:
    medium: Memory
    sizeLimit: {{ .sharedMemory }}
- name: tmp
  emptyDir: {}
- name: model-cache
  {{- if eq $cache.type "pvc" }}
  persistentVolumeClaim:
    claimName: {{ $cache.existingClaim | default (printf "%s-model-cache" (include "peagle.fullname" .root)) }}
  {{- else if or .isHead (eq $cache.type "none") }}
  emptyDir: {}
  {{- else if eq $cache.type "hostPath" }}
  hostPath:
    path: {{ $cache.hostPath }}
    type: DirectoryOrCreate
  {{- else }}
  ephemeral:
    volumeClaimTemplate:
      metadata:
        labels:
          {{- include "peagle.selector" .root | nindent 10 }}
      spec:
        {{- include "peagle.cacheClaim" (dict "cache" $cache "accessMode" "ReadWriteOnce") | nindent 8 }}
  {{- end }}
# Optional: without the secret no API key is required; it may be created later.
- name: api-keys
  secret:
    secretName: {{ $values.apiKeys.existingSecret | default (printf "%s-api-keys" (include "peagle.fullname" .root)) }}
    optional: true
    items:
      - key: {{ $values.apiKeys.key }}
        path: keys
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "peagle.cacheClaim" -}}
accessModes: [{{ .accessMode }}]
{{- with .cache.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .cache.size }}
{{- end -}}

{{/*
Probes use HTTP, so that a busy pod needs no new process for each. They do not wait for a model: a replica loads after
Ray is up, and only the application itself knows whether it is ready.
(dict "root" $ "isHead" true)
*/}}
{{- define "peagle.probes" -}}
{{- $probes := .root.Values.probes -}}
{{- $alive := ternary (dict "path" "/api/gcs_healthz" "port" 8265) (dict "path" "/api/local_raylet_healthz" "port" 52365) .isHead -}}
{{- $ready := ternary $alive (dict "path" "/-/healthz" "port" 8000) .isHead -}}
startupProbe:
  httpGet: {{ toJson $alive }}
  timeoutSeconds: {{ $probes.liveness.timeoutSeconds }}
  {{- toYaml $probes.startup | nindent 2 }}
readinessProbe:
  httpGet: {{ toJson $ready }}
  {{- toYaml $probes.readiness | nindent 2 }}
livenessProbe:
  httpGet: {{ toJson $alive }}
  {{- toYaml $probes.liveness | nindent 2 }}
{{- end -}}
