{{- define "peagle.gcsOptions" -}}
{{- $gcs := .Values.gcs -}}
{{- $store := get $gcs $gcs.store -}}
redisAddress: {{ ternary (printf "redis://%s-redis:6379" (include "peagle.fullname" .)) $gcs.external.address (eq $gcs.store "bundled") }}
{{- if and (eq $gcs.store "external") $store.username }}
redisUsername:
  value: {{ $store.username | quote }}
{{- end }}
{{- with $store.existingSecret }}
redisPassword:
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $store.passwordKey }}
{{- end }}
{{- end -}}

{{- define "peagle.headPod" -}}
metadata:
  labels:
    {{- include "peagle.podLabels" (dict "root" $ "component" "head" "labels" .Values.head.labels) | nindent 4 }}
  {{- with .Values.head.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "peagle.fullname" . }}-head
  # Only the autoscaler in the head pod calls the Kubernetes API.
  automountServiceAccountToken: {{ .Values.autoscaling.enabled | default false }}
  enableServiceLinks: false
  {{- with include "peagle.pullSecrets" . | trim }}{{ . | nindent 2 }}{{ end }}
  securityContext:
    {{- include "peagle.podSecurityContext" . | nindent 4 }}
  {{- with include "peagle.placement" .Values.head | trim }}{{ . | nindent 2 }}{{ end }}
  {{- with .Values.initContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: ray-head
      {{- include "peagle.imageFields" . | nindent 6 }}
      securityContext:
        {{- include "peagle.securityContext" . | nindent 8 }}
      env:
        {{- include "peagle.env" (dict "root" $ "env" dict) | trim | nindent 8 }}
      {{- with include "peagle.envFrom" . | trim }}{{ . | nindent 6 }}{{ end }}
      ports:
        - {name: gcs-server, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        - {name: client, containerPort: 10001}
        - {name: serve, containerPort: 8000}
        - {name: metrics, containerPort: 8080}
        - {name: as-metrics, containerPort: 44217}
        - {name: dash-metrics, containerPort: 44227}
      resources:
        {{- include "peagle.resources" .Values.head.resources | nindent 8 }}
      volumeMounts:
        {{- include "peagle.volumeMounts" . | nindent 8 }}
      {{- include "peagle.probes" (dict "root" $ "isHead" true) | nindent 6 }}
  volumes:
    {{- include "peagle.volumes" (dict "root" $ "sharedMemory" .Values.head.sharedMemory "isHead" true) | nindent 4 }}
{{- end -}}

{{/* Pod of a worker group: (dict "root" $ "name" name "group" group) */}}
{{- define "peagle.workerPod" -}}
{{- $root := .root -}}
{{- $group := .group -}}
{{- $extended := dict -}}
{{- if $group.gpus }}{{- $_ := set $extended $group.gpuResource $group.gpus }}{{- end -}}
{{- if $group.rdmaDevices }}{{- $_ := set $extended $group.rdmaResource $group.rdmaDevices }}{{- end -}}
{{- with $group.ephemeralStorage }}{{- $_ := set $extended "ephemeral-storage" . }}{{- end -}}
metadata:
  labels:
    {{- include "peagle.podLabels" (dict "root" $root "component" "worker" "labels" $group.labels) | nindent 4 }}
  {{- with $group.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "peagle.fullname" $root }}-worker
  automountServiceAccountToken: false
  enableServiceLinks: false
  # KubeRay waits for the head in an init container whose first process, a shell, ignores SIGTERM. If the head never
  # starts, the pod would hold its GPUs for its whole grace period. So the shell is not the first process.
  shareProcessNamespace: true
  {{- with include "peagle.pullSecrets" $root | trim }}{{ . | nindent 2 }}{{ end }}
  {{- $drain := $root.Values.drain }}
  {{- $leaveSeconds := add $drain.replacementSeconds $drain.timeoutSeconds }}
  terminationGracePeriodSeconds: {{ add $leaveSeconds $drain.shutdownSeconds }}
  securityContext:
    {{- include "peagle.podSecurityContext" $root | nindent 4 }}
  {{- with $group.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with include "peagle.placement" $group | trim }}{{ . | nindent 2 }}{{ end }}
  {{- with $group.topologyKey }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "peagle.selector" $root | nindent 10 }}
          ray.io/group: {{ $.name }}
  {{- end }}
  {{- $ownsCache := eq $root.Values.modelCache.type "hostPath" }}
  {{- if or $ownsCache $root.Values.initContainers }}
  initContainers:
    {{- if $ownsCache }}
    {{- include "peagle.ownCache" $root | nindent 4 }}
    {{- end }}
    {{- with $root.Values.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: ray-worker
      {{- include "peagle.imageFields" $root | nindent 6 }}
      securityContext:
        {{- include "peagle.securityContext" $root | nindent 8 }}
          {{- if $group.rdmaDevices }}
          # RDMA pins the memory of its buffers.
          add: [IPC_LOCK]
          {{- end }}
      env:
        {{- include "peagle.env" (dict "root" $root "env" $group.env) | trim | nindent 8 }}
      {{- with include "peagle.envFrom" $root | trim }}{{ . | nindent 6 }}{{ end }}
      ports:
        - {name: serve, containerPort: 8000}
        - {name: metrics, containerPort: 8080}
      resources:
        requests: {{ merge (dict "cpu" (default $group.cpus $group.cpuRequest | toString) "memory" $group.memory) $extended | toJson }}
        limits: {{ merge (dict "cpu" (toString $group.cpus) "memory" $group.memory) $extended | toJson }}
      volumeMounts:
        {{- include "peagle.volumeMounts" $root | nindent 8 }}
      {{- include "peagle.probes" (dict "root" $root "isHead" false) | nindent 6 }}
      lifecycle:
        preStop:
          exec:
            command: [python, -m, peagle.cluster.leave, --timeout-s, {{ $leaveSeconds | quote }}]
  volumes:
    {{- include "peagle.volumes" (dict "root" $root "sharedMemory" $group.sharedMemory "isHead" false) | nindent 4 }}
{{- end -}}

{{- define "peagle.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}
