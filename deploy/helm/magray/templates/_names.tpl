{{- define "magray.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "magray.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "magray.labels" -}}
{{ include "magray.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "magray.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "magray.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "magray.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* The names of the pools that are there, in order, as JSON. */}}
{{- define "magray.pools" -}}
{{- $names := list -}}
{{- range $name, $pool := .Values.pools -}}
{{- if $pool.enabled -}}{{- $names = append $names $name -}}{{- end -}}
{{- end -}}
{{- sortAlpha $names | toJson -}}
{{- end -}}

{{/* Settings that would break what the chart promises are refused here: a schema sees one value at a time. */}}
{{- define "magray.check" -}}
{{- $pools := include "magray.pools" . | fromJsonArray -}}
{{- if and (not $pools) (not .Values.kserve.enabled) -}}
{{- fail "there is nothing to run: enable a pool (pools.cpu.enabled), or kserve.enabled" -}}
{{- end -}}
{{- if and .Values.collections.enabled (gt (len $pools) 1) -}}
{{- fail "collections.enabled keeps collections on the disk of one pod: enable one pool alone" -}}
{{- end -}}
{{- range $name := $pools -}}
{{- $pool := index $.Values.pools $name -}}
{{- $scaling := merge (deepCopy $pool.autoscaling) $.Values.autoscaling -}}
{{- if and $.Values.collections.enabled (or (gt (int $pool.replicas) 1) (ne $scaling.kind "none")) -}}
{{- fail (printf "collections.enabled keeps collections on the disk of one pod: set pools.%s.replicas to 1 and its autoscaling.kind to none" $name) -}}
{{- end -}}
{{- if lt (int $scaling.maxReplicas) (int $scaling.minReplicas) -}}
{{- fail (printf "autoscaling of the pool %s: maxReplicas (%d) is less than minReplicas (%d)" $name (int $scaling.maxReplicas) (int $scaling.minReplicas)) -}}
{{- end -}}
{{- if and (eq $pool.device "cpu") (gt (int $pool.gpus) 0) -}}
{{- fail (printf "pools.%s asks for %d GPUs and computes on the cpu: set its gpus to 0, or its device to prefer-gpu" $name (int $pool.gpus)) -}}
{{- end -}}
{{- if and (eq $pool.device "require-gpu") (eq (int $pool.gpus) 0) -}}
{{- fail (printf "pools.%s requires a GPU and asks for none: set its gpus to 1" $name) -}}
{{- end -}}
{{- if and (eq (int $pool.replicas) 0) (eq $scaling.kind "hpa") -}}
{{- fail (printf "pools.%s has no replicas, and an HPA does not scale from 0: set replicas to 1, or autoscaling.kind to keda" $name) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.cache.kind "existingClaim") (not .Values.cache.existingClaim) -}}
{{- fail "cache.kind is existingClaim and cache.existingClaim names none" -}}
{{- end -}}
{{- if and .Values.auth.existingSecret (not .Values.auth.apiKeys) (not .Values.auth.adminKeys) -}}
{{- fail "auth.existingSecret is set, and neither auth.apiKeys nor auth.adminKeys names an entry of it" -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.auth.existingSecret .Values.auth.apiKeys (not .Values.podMonitor.bearerTokenSecret) -}}
{{- fail "the server has keys, so /metrics needs one: name the Secret that holds it in podMonitor.bearerTokenSecret" -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled .Values.auth.existingSecret .Values.auth.apiKeys -}}
{{- fail "the endpoint picker reads /metrics without a key: set auth.apiKeys to \"\" where inferencePool.enabled, and keep clients out by the gateway and networkPolicy.from" -}}
{{- end -}}
{{- end -}}

{{/* The settings of a pool as TOML; what the chart decides goes before what the user says. */}}
{{- define "magray.settings" -}}
{{- $root := .root -}}{{- $pool := .pool -}}
{{- $full := include "magray.fullname" $root -}}
{{- $namespace := $root.Release.Namespace -}}
{{- $hosts := list $full (printf "%s.%s" $full $namespace) (printf "%s.%s.svc" $full $namespace) (printf "%s.%s.svc.cluster.local" $full $namespace) -}}
{{- $aliases := list -}}
{{- range $alias, $model := $root.Values.aliases -}}{{- $aliases = append $aliases (printf "%s=%s" $alias $model) -}}{{- end -}}
{{- $server := dict
  "host" "0.0.0.0"
  "port" 7860
  "models" (default $root.Values.models $pool.models)
  "allowed_hosts" (concat $hosts $root.Values.allowedHosts)
  "drain_delay_s" (int $root.Values.drain.delaySeconds)
  "drain_timeout_s" (int $root.Values.drain.timeoutSeconds) -}}
{{- if $root.Values.inferencePool.enabled -}}{{- $_ := set $server "vllm_metrics" true -}}{{- end -}}
{{- if $aliases -}}{{- $_ := set $server "aliases" $aliases -}}{{- end -}}
{{- if and $root.Values.auth.existingSecret $root.Values.auth.apiKeys -}}{{- $_ := set $server "api_keys_file" "/etc/magray/keys/api" -}}{{- end -}}
{{- if and $root.Values.auth.existingSecret $root.Values.auth.adminKeys -}}{{- $_ := set $server "admin_keys_file" "/etc/magray/keys/admin" -}}{{- end -}}
{{- if $root.Values.tls.existingSecret -}}
{{- $_ := set $server "tls_cert" "/etc/magray/tls/tls.crt" -}}{{- $_ := set $server "tls_key" "/etc/magray/tls/tls.key" -}}
{{- end -}}
{{- $own := dict
  "server" $server
  "embed" (dict "device" $pool.device)
  "gpu" (dict "memory" (dict "preload" true))
  "log" (dict "format" "json")
  "search" (dict "folder" "/var/lib/magray-collections") -}}
{{- $user := merge (deepCopy $pool.settings) (deepCopy $root.Values.settings) -}}
{{- merge $own $user | toToml -}}
{{- end -}}

{{- define "magray.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: { drop: [ALL] }
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "magray.env" -}}
- { name: HOME, value: /var/lib/magray }
- { name: XDG_DATA_HOME, value: /var/lib }
- { name: XDG_STATE_HOME, value: /tmp/state }
- { name: XDG_CACHE_HOME, value: /var/lib/magray/cache }
- { name: XDG_RUNTIME_DIR, value: /tmp }
{{- if .Values.hubToken.existingSecret }}
- name: HF_TOKEN
  valueFrom: { secretKeyRef: { name: {{ .Values.hubToken.existingSecret | quote }}, key: {{ .Values.hubToken.key | quote }} } }
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
