{{- /*
Renders a template once, or once for each of .Values.feeds: with values that are those of the feed, and
its name in .Feed. Its argument is a list of the root and the template's name.
*/}}
{{- define "watcherd.each" }}
{{- $root := index . 0 }}
{{- $template := index . 1 }}
{{- if not $root.Values.feeds }}
{{- include $template $root }}
{{- else }}
{{- include "watcherd.checkFeeds" $root }}
{{- range $name, $feed := $root.Values.feeds }}
{{- $values := deepCopy $root.Values }}
{{- $_ := set $values "config" (include "watcherd.feedConfig" (list $root $name $feed)) }}
{{- $_ := set $values "rbac" (dict "create" $values.rbac.create "clusterRules" ($feed.clusterRules | default list) "namespaceRules" ($feed.namespaceRules | default dict)) }}
{{- with $feed.resources }}
{{- $_ := set $values "resources" . }}
{{- end }}
{{- with $feed.size }}
{{- $_ := set $values.persistence "size" . }}
{{- end }}
---
{{ include $template (dict "Values" $values "Release" $root.Release "Chart" $root.Chart "Files" $root.Files "Feed" $name) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The configuration of a feed: what all have, then its own, its name, and a stream of its own. */}}
{{- define "watcherd.feedConfig" }}
{{- $root := index . 0 }}
{{- $name := index . 1 }}
{{- $feed := index . 2 }}
{{- $config := fromYaml ($root.Values.config | default "{}") }}
{{- with $config.Error }}
{{- fail (printf "config is not YAML: %s" .) }}
{{- end }}
{{- $stream := dig "store" "journal" "stream" "" $config }}
{{- $config = mergeOverwrite (dict "apiVersion" "watcherd.dev/v1alpha1" "kind" "WatcherConfig") $config (deepCopy $feed.config) (dict "feed" (dict "name" $name)) }}
{{- if and $stream (eq $stream (dig "store" "journal" "stream" "" $config)) }}
{{- $_ := set $config.store.journal "stream" (printf "%s-%s" $stream $name) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- define "watcherd.checkFeeds" }}
{{- if .Values.existingConfigMap }}
{{- fail "feeds: the chart makes the configuration of each, so existingConfigMap must be empty" }}
{{- end }}
{{- if .Values.persistence.existingClaim }}
{{- fail "feeds: each has a store of its own, so persistence.existingClaim must be empty" }}
{{- end }}
{{- if or .Values.rbac.clusterRules .Values.rbac.namespaceRules }}
{{- fail "feeds: each has permissions of its own: set clusterRules and namespaceRules of the feeds, not of rbac" }}
{{- end }}
{{- $streams := dict }}
{{- $seen := list }}
{{- range $name, $feed := .Values.feeds }}
{{- if and $.Values.rbac.create (not $feed.clusterRules) (not $feed.namespaceRules) }}
{{- fail (printf "feeds: say what %s may read: set its clusterRules or namespaceRules to what 'watcherd rbac --config FILE' prints, or rbac.create=false" $name) }}
{{- end }}
{{- $config := include "watcherd.feedConfig" (list $ $name $feed) | fromYaml }}
{{- with dig "store" "journal" "stream" "" $config }}
{{- if hasKey $streams . }}
{{- fail (printf "feeds: %s and %s have the stream %s, but each needs one of its own" (get $streams .) $name .) }}
{{- end }}
{{- $_ := set $streams . $name }}
{{- end }}
{{- $own := list }}
{{- range $config.watches }}
{{- $except := list }}
{{- range .excludeResources }}
{{- $except = append $except (include "watcherd.resource" . | fromYaml) }}
{{- end }}
{{- range .resources }}
{{- $r := merge (dict "feed" $name "except" $except) (include "watcherd.resource" . | fromYaml) }}
{{- range $seen }}
{{- if or (include "watcherd.takes" (list . $r)) (include "watcherd.takes" (list $r .)) }}
{{- fail (printf "feeds: %s of %s and %s of %s name the same resource, which would be read and delivered twice; a name without a group can be any, so write the group, or for the core group the version as in pods.v1" .text .feed $r.text $r.feed) }}
{{- end }}
{{- end }}
{{- $own = append $own $r }}
{{- end }}
{{- end }}
{{- $seen = concat $seen $own }}
{{- end }}
{{- end }}

{{- /* A resource of a watch, RESOURCE[.VERSION][.GROUP] or a mapping, as a mapping; any: its group is not given. */}}
{{- define "watcherd.resource" }}
{{- if kindIs "map" . }}
{{- dict "text" (printf "%s.%s" .resource (.group | default "")) "resource" (lower .resource) "group" (.group | default "") "any" false | toYaml }}
{{- else }}
{{- $text := lower (toString .) }}
{{- $resource := regexFind "^[^.]*" $text }}
{{- $rest := trimPrefix "." (trimPrefix $resource $text) }}
{{- $group := regexReplaceAll "^v[0-9]+((alpha|beta)[0-9]+)?([.]|$)" $rest "" }}
{{- dict "text" $text "resource" $resource "group" $group "any" (eq $rest "") | toYaml }}
{{- end }}
{{- end }}

{{- /* Whether the first of two resources, of a watch, has the second. */}}
{{- define "watcherd.takes" }}
{{- $a := index . 0 }}
{{- $b := index . 1 }}
{{- if include "watcherd.covers" . }}
{{- $left := true }}
{{- range $a.except }}
{{- if include "watcherd.covers" (list . $b) }}
{{- $left = false }}
{{- end }}
{{- end }}
{{- if $left }}yes{{ end }}
{{- end }}
{{- end }}

{{- define "watcherd.covers" }}
{{- $a := index . 0 }}
{{- $b := index . 1 }}
{{- if eq $a.resource "*" }}
{{- if or $a.any (and (eq $a.group $b.group) (not $b.any)) }}yes{{ end }}
{{- else if and (eq $a.resource $b.resource) (or $a.any $b.any (eq $a.group $b.group)) }}yes
{{- end }}
{{- end }}
