{{- define "watcherd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Not over 52 characters: the controller adds a hash to it in a label of the pods. */}}
{{- define "watcherd.fullname" -}}
{{- $feed := "" }}
{{- with .Feed }}
{{- $feed = printf "-%s" . }}
{{- end }}
{{- $room := sub 52 (len $feed) | int }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc $room | trimSuffix "-" }}
{{- else }}
{{- $name := include "watcherd.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc $room | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc $room | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- $feed }}
{{- end }}

{{- /* Cluster roles have no namespace, so their name has it; a namespace has no dot. */}}
{{- define "watcherd.clusterName" -}}
{{- printf "%s.%s" .Release.Namespace (include "watcherd.fullname" .) }}
{{- end }}

{{- define "watcherd.selectorLabels" -}}
app.kubernetes.io/name: {{ include "watcherd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- with .Feed }}
watcherd.dev/feed: {{ . }}
{{- end }}
{{- end }}

{{- define "watcherd.labels" -}}
{{ include "watcherd.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "watcherd.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- with .Values.serviceAccount.name }}
{{- . }}{{ with $.Feed }}-{{ . }}{{ end }}
{{- else }}
{{- include "watcherd.fullname" . }}
{{- end }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "watcherd.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}
