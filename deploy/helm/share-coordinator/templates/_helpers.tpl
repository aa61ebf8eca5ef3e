{{/* The name of all objects: the release, with the chart's name unless the release has it already. */}}
{{- define "share-coordinator.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The job that the alerts select. */}}
{{- define "share-coordinator.job" -}}
{{- ternary "share-coordinator-observer" .Chart.Name (eq .Values.mode "observe") -}}
{{- end -}}

{{- define "share-coordinator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "share-coordinator.job" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "share-coordinator.labels" -}}
{{ include "share-coordinator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* All settings by name; those of `settings` win. */}}
{{- define "share-coordinator.settings" -}}
{{- $name := include "share-coordinator.fullname" . -}}
{{- $settings := dict
  "http" (printf "0.0.0.0:%v" .Values.http.port)
  "logging.format" "json" -}}
{{- if eq .Values.mode "observe" -}}
{{- $settings = merge $settings (dict "bootstrap.servers" .Values.kafka.bootstrapServers) -}}
{{- else -}}
{{- $settings = merge $settings (dict
  "listen" (printf "0.0.0.0:%v" .Values.listener.port)
  "log" .Values.log.type) -}}
{{- if eq .Values.log.type "kafka" -}}
{{- $settings = merge $settings (dict
  "bootstrap.servers" .Values.kafka.bootstrapServers
  "ownership" "group"
  "group.instance.id" "$(POD_NAME)"
  "advertise" (printf "$(POD_NAME).%s-pods.$(POD_NAMESPACE).svc:%v" $name .Values.listener.port)) -}}
{{- else -}}
{{- $settings = merge $settings (dict
  "data.dir" "/data"
  "journal.sync" .Values.log.journal.sync
  "advertise" (printf "%s.$(POD_NAMESPACE).svc:%v" $name .Values.listener.port)) -}}
{{- end -}}
{{- if .Values.listener.tlsSecretName -}}
{{- $settings = merge $settings (dict
  "listen.security.protocol" "SSL"
  "listen.ssl.certificate.location" "/etc/share-coordinator/listener/tls.crt"
  "listen.ssl.key.location" "/etc/share-coordinator/listener/tls.key"
  "listen.ssl.ca.location" "/etc/share-coordinator/listener/ca.crt"
  "listen.ssl.client.auth" .Values.listener.clientAuth) -}}
{{- else -}}
{{- $settings = merge $settings (dict "listen.plaintext.allowed" "true") -}}
{{- end -}}
{{- end -}}
{{- if .Values.http.tlsSecretName -}}
{{- $settings = merge $settings (dict
  "http.ssl.certificate.location" "/etc/share-coordinator/http/tls.crt"
  "http.ssl.key.location" "/etc/share-coordinator/http/tls.key") -}}
{{- end -}}
{{- if .Values.http.tokenSecretName -}}
{{- $settings = merge $settings (dict "http.token.file" "/etc/share-coordinator/token/token") -}}
{{- end -}}
{{- merge (deepCopy .Values.settings) $settings | toJson -}}
{{- end -}}
