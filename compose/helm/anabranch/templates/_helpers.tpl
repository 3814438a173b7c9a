{{- define "anabranch.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "anabranch.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "anabranch.labels" -}}
{{ include "anabranch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "anabranch.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else if .Values.serviceAccount.create }}{{ include "anabranch.name" . }}{{ else }}default{{ end }}
{{- end }}

{{- /* What cannot work is refused before anything is made of it. */ -}}
{{- define "anabranch.check" -}}
{{- if .Values.cluster.enabled }}
{{- if not .Values.cluster.database.secretName }}{{ fail "cluster.database.secretName: a secret with the URL of a PostgreSQL is needed" }}{{ end }}
{{- if not .Values.cluster.objects.url }}{{ fail "cluster.objects.url: where objects are kept is needed, as s3://BUCKET/PREFIX" }}{{ end }}
{{- else if gt (int .Values.replicas) 1 }}{{ fail "replicas: more than one node needs cluster.enabled" }}
{{- end }}
{{- if and .Values.external.enabled (not .Values.external.host) }}{{ fail "external.host: by which name clients outside reach a pod is needed, as kafka-$(POD_INDEX).example.com" }}{{ end }}
{{- if and .Values.external.enabled (gt (int .Values.replicas) 1) (not (contains "$(POD_INDEX)" .Values.external.host)) }}{{ fail "external.host: each pod needs a name of its own: use $(POD_INDEX) in it" }}{{ end }}
{{- if and .Values.auth.required (not .Values.auth.secretName) }}{{ fail "auth.secretName: who is to be let in stands in a secret with users.json" }}{{ end }}
{{- if and .Values.auth.tickets (gt (int .Values.replicas) 1) (not .Values.auth.secretName) }}{{ fail "auth.secretName: nodes that demand tickets of one another need the same token-keys.json, in a secret" }}{{ end }}
{{- end }}

{{- /* The variable of a setting: kafka.num_partitions is ANABRANCH_KAFKA__NUM_PARTITIONS. */ -}}
{{- define "anabranch.variable" -}}
ANABRANCH_{{ . | replace "." "__" | replace "-" "_" | upper }}
{{- end }}
