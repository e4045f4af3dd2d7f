{{- define "pliant.labels" -}}
app.kubernetes.io/name: pliant
app.kubernetes.io/component: coordinator
{{- end }}

{{- define "pliant.scheme" -}}
{{ if .Values.tlsSecret }}https{{ else }}http{{ end }}
{{- end }}

{{- define "pliant.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "pliant.mounts" -}}
- {name: home, mountPath: /var/lib/pliant}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tlsSecret }}
- {name: tls, mountPath: /etc/pliant/tls}
{{- end }}
{{- end }}

{{- define "pliant.environment" -}}
- {name: PLIANT_HOME, value: /var/lib/pliant/home}
{{- if .Values.tlsSecret }}
- {name: PLIANT_CA_FILE, value: /etc/pliant/tls/ca.crt}
{{- end }}
{{- end }}

{{- define "pliant.urls" -}}
{{- $scheme := include "pliant.scheme" . }}
{{- if gt (int .Values.replicas) 1 }}
{{- range $number := until (int .Values.replicas) }}
{{- if $number }},{{ end }}{{ $scheme }}://pliant-{{ $number }}.pliant-coordinators.{{ $.Release.Namespace }}.svc:7711
{{- end }}
{{- else }}{{ $scheme }}://pliant.{{ .Release.Namespace }}.svc:7711
{{- end }}
{{- end }}
