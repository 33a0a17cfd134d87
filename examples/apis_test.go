package examples

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// The APIs of this file answer as the documentation of the real ones has it, as far as
// the recipes go: they refuse what those refuse.

// api answers a request.
type api func(r *http.Request, body []byte) (status int, answer string)

// mock is a server of an API. It keeps what was accepted and what was refused.
type mock struct {
	*httptest.Server
	mu       sync.Mutex
	accepted [][]byte // guarded by mu
	refused  []string // guarded by mu
}

func newMock(t *testing.T, answer api) *mock {
	t.Helper()
	m := &mock{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, text, body := http.StatusBadRequest, "the body cannot be read", []byte(nil)
		if in, err := decoded(r); err == nil {
			if body, err = io.ReadAll(in); err == nil {
				status, text = answer(r, body)
			}
		}
		m.mu.Lock()
		if status/100 == 2 {
			m.accepted = append(m.accepted, body)
		} else {
			m.refused = append(m.refused, fmt.Sprintf("%s %s: %d %s: %s", r.Method, r.URL.Path, status, text, body))
		}
		m.mu.Unlock()
		if json.Valid([]byte(text)) {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(func() {
		m.Close()
		for _, r := range m.refused {
			t.Errorf("refused: %s", r)
		}
	})
	return m
}

func decoded(r *http.Request) (io.Reader, error) {
	if r.Header.Get("Content-Encoding") != "gzip" {
		return r.Body, nil
	}
	return gzip.NewReader(r.Body)
}

// bodies are the accepted ones that contain the text.
func (m *mock) bodies(text string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []string
	for _, b := range m.accepted {
		if bytes.Contains(b, []byte(text)) {
			list = append(list, string(b))
		}
	}
	return list
}

func isJSON(r *http.Request) bool {
	return strings.HasPrefix(r.Header.Get("Content-Type"), "application/json")
}

// slack is an incoming webhook.
// See https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks.
func slack(r *http.Request, body []byte) (int, string) {
	var m struct {
		Text   string            `json:"text"`
		Blocks []json.RawMessage `json:"blocks"`
	}
	switch {
	case r.Method != http.MethodPost:
		return http.StatusBadRequest, "invalid_payload"
	case !regexp.MustCompile(`^/services/T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]{24}$`).MatchString(r.URL.Path):
		return http.StatusNotFound, "no_service"
	case !isJSON(r) || json.Unmarshal(body, &m) != nil:
		return http.StatusBadRequest, "invalid_payload"
	case m.Text == "" && len(m.Blocks) == 0:
		return http.StatusBadRequest, "no_text"
	case len([]rune(m.Text)) > 40_000:
		return http.StatusBadRequest, "msg_too_long"
	}
	return http.StatusOK, "ok"
}

// teams is the trigger of a workflow that posts adaptive cards.
// See https://learn.microsoft.com/connectors/teams/#microsoft-teams-webhook.
func teams(r *http.Request, body []byte) (int, string) {
	var m struct {
		Type        string `json:"type"`
		Attachments []struct {
			ContentType string `json:"contentType"`
			Content     struct {
				Type    string `json:"type"`
				Version string `json:"version"`
				Body    []struct {
					Type    string  `json:"type"`
					Text    *string `json:"text"`
					Inlines []struct {
						Type string  `json:"type"`
						Text *string `json:"text"`
					} `json:"inlines"`
					Facts []struct{ Title, Value string } `json:"facts"`
				} `json:"body"`
			} `json:"content"`
		} `json:"attachments"`
	}
	if r.Method != http.MethodPost || r.URL.Query().Get("sig") == "" {
		return http.StatusUnauthorized, `{"error":{"code":"DirectApiAuthorizationRequired"}}`
	}
	if len(body) > 28<<10 {
		return http.StatusRequestEntityTooLarge, `{"error":{"code":"RequestEntityTooLarge"}}`
	}
	if !isJSON(r) || json.Unmarshal(body, &m) != nil || m.Type != "message" || len(m.Attachments) == 0 {
		return http.StatusBadRequest, `{"error":{"code":"TriggerInputSchemaMismatch"}}`
	}
	for _, a := range m.Attachments {
		c := a.Content
		if a.ContentType != "application/vnd.microsoft.card.adaptive" || c.Type != "AdaptiveCard" || c.Version == "" || len(c.Body) == 0 {
			return http.StatusBadRequest, `{"error":{"code":"TriggerInputSchemaMismatch"}}`
		}
		for _, e := range c.Body {
			if e.Type == "" || e.Type == "TextBlock" && e.Text == nil || e.Type == "RichTextBlock" && len(e.Inlines) == 0 {
				return http.StatusBadRequest, `{"error":{"code":"InvalidCard"}}`
			}
			for _, run := range e.Inlines {
				if run.Type != "TextRun" || run.Text == nil {
					return http.StatusBadRequest, `{"error":{"code":"InvalidCard"}}`
				}
			}
		}
	}
	return http.StatusAccepted, ""
}

// discord executes a webhook.
// See https://discord.com/developers/docs/resources/webhook#execute-webhook.
func discord(r *http.Request, body []byte) (int, string) {
	var m struct {
		Username *string `json:"username"`
		Content  string  `json:"content"`
		Embeds   []struct {
			Title       string    `json:"title"`
			Description string    `json:"description"`
			Timestamp   time.Time `json:"timestamp"`
			Color       int       `json:"color"`
		} `json:"embeds"`
	}
	switch {
	case !regexp.MustCompile(`^/api/webhooks/[0-9]+/[\w-]+$`).MatchString(r.URL.Path):
		return http.StatusNotFound, `{"message":"Unknown Webhook","code":10015}`
	case r.Method != http.MethodPost || !isJSON(r) || json.Unmarshal(body, &m) != nil:
		return http.StatusBadRequest, `{"message":"The request body contains invalid JSON.","code":50109}`
	case m.Content == "" && len(m.Embeds) == 0:
		return http.StatusBadRequest, `{"message":"Cannot send an empty message","code":50006}`
	case len([]rune(m.Content)) > 2000 || len(m.Embeds) > 10 || m.Username != nil && (*m.Username == "" || len(*m.Username) > 80):
		return http.StatusBadRequest, `{"message":"Invalid Form Body","code":50035}`
	}
	for _, e := range m.Embeds {
		if len(e.Title) > 256 || len(e.Description) > 4096 || e.Color < 0 || e.Color > 0xffffff {
			return http.StatusBadRequest, `{"message":"Invalid Form Body","code":50035}`
		}
	}
	return http.StatusNoContent, ""
}

// pagerDuty is the Events API v2.
// See https://developer.pagerduty.com/docs/events-api-v2/trigger-events/.
func pagerDuty(r *http.Request, body []byte) (int, string) {
	var m struct {
		RoutingKey string `json:"routing_key"`
		Action     string `json:"event_action"`
		DedupKey   string `json:"dedup_key"`
		Payload    *struct {
			Summary   string    `json:"summary"`
			Source    string    `json:"source"`
			Severity  string    `json:"severity"`
			Timestamp time.Time `json:"timestamp"`
		} `json:"payload"`
	}
	invalid := func(what string) (int, string) {
		return http.StatusBadRequest, fmt.Sprintf(`{"status":"invalid event","message":"Event object is invalid","errors":[%q]}`, what)
	}
	severity := regexp.MustCompile(`^(critical|error|warning|info)$`)
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/v2/enqueue":
		return http.StatusNotFound, ""
	case !isJSON(r) || json.Unmarshal(body, &m) != nil:
		return invalid("JSON is invalid")
	case len(m.RoutingKey) != 32:
		return invalid("Length of 'routing_key' is incorrect (should be 32 characters)")
	case len(m.DedupKey) > 255:
		return invalid("'dedup_key' is too long")
	case m.Action == "resolve" || m.Action == "acknowledge":
		if m.DedupKey == "" {
			return invalid("'dedup_key' is missing or blank")
		}
	case m.Action != "trigger":
		return invalid("'event_action' is missing or blank")
	case m.Payload == nil || m.Payload.Summary == "" || len(m.Payload.Summary) > 1024:
		return invalid("'payload.summary' is missing or blank")
	case m.Payload.Source == "":
		return invalid("'payload.source' is missing or blank")
	case len(body) > 512<<10:
		return http.StatusRequestEntityTooLarge, ""
	case !severity.MatchString(m.Payload.Severity):
		return invalid("'payload.severity' is invalid (must be one of the following: 'critical', 'warning', 'error' or 'info')")
	}
	return http.StatusAccepted, fmt.Sprintf(`{"status":"success","message":"Event processed","dedup_key":%q}`, m.DedupKey)
}

// grafana creates annotations.
// See https://grafana.com/docs/grafana/latest/developers/http_api/annotations/.
func grafana(r *http.Request, body []byte) (int, string) {
	var m struct {
		Time int64    `json:"time"`
		Tags []string `json:"tags"`
		Text string   `json:"text"`
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer glsa_test":
		return http.StatusUnauthorized, `{"message":"Unauthorized"}`
	case r.Method != http.MethodPost || r.URL.Path != "/api/annotations":
		return http.StatusNotFound, `{"message":"Not found"}`
	case !isJSON(r) || json.Unmarshal(body, &m) != nil:
		return http.StatusBadRequest, `{"message":"bad request data"}`
	case m.Text == "":
		return http.StatusBadRequest, `{"message":"Failed to save annotation"}`
	case m.Time < 1e12 || m.Time > 1e13: // milliseconds
		return http.StatusBadRequest, `{"message":"the time is not of this century"}`
	}
	if len(strings.Join(m.Tags, "")) > 500-8*len(m.Tags) { // tags_length
		return http.StatusInternalServerError, `{"message":"Failed to save annotation"}`
	}
	for _, tag := range m.Tags {
		key, value, _ := strings.Cut(tag, ":")
		if len(key) > 100 || len(value) > 100 { // of PostgreSQL and MySQL: varchar(100)
			return http.StatusInternalServerError, `{"message":"Failed to save annotation"}`
		}
	}
	return http.StatusOK, `{"message":"Annotation added","id":1}`
}

// loki is the push API.
// See https://grafana.com/docs/loki/latest/reference/loki-http-api/#ingest-logs.
func loki(r *http.Request, body []byte) (int, string) {
	var m struct {
		Streams []struct {
			Stream map[string]string    `json:"stream"`
			Values [][]*json.RawMessage `json:"values"`
		} `json:"streams"`
	}
	label := regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	nanoseconds := regexp.MustCompile(`^"[0-9]{19}"$`)
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/loki/api/v1/push":
		return http.StatusNotFound, "404 page not found"
	case r.Header.Get("X-Scope-OrgID") == "":
		return http.StatusUnauthorized, "no org id"
	case !isJSON(r) || json.Unmarshal(body, &m) != nil:
		return http.StatusBadRequest, "couldn't parse push request"
	}
	for _, s := range m.Streams {
		if len(s.Stream) == 0 {
			return http.StatusBadRequest, "error at least one label pair is required per stream"
		}
		for name, value := range s.Stream {
			if !label.MatchString(name) {
				return http.StatusBadRequest, "couldn't parse labels"
			}
			if len(value) > 2048 {
				return http.StatusBadRequest, "stream has label value too long"
			}
		}
		for _, v := range s.Values {
			var line string
			if len(v) < 2 || !nanoseconds.Match(*v[0]) || json.Unmarshal(*v[1], &line) != nil {
				return http.StatusBadRequest, "couldn't parse push request"
			}
			if len(line) > 256<<10 {
				return http.StatusBadRequest, "max entry size exceeded"
			}
		}
	}
	return http.StatusNoContent, ""
}

// splunk is the HTTP Event Collector. It takes objects one behind the other.
// See https://docs.splunk.com/Documentation/Splunk/latest/Data/FormateventsforHTTPEventCollector.
func splunk(r *http.Request, body []byte) (int, string) {
	switch {
	case r.URL.Path != "/services/collector/event" || r.Method != http.MethodPost:
		return http.StatusNotFound, `{"text":"The requested URL was not found on this server.","code":404}`
	case r.Header.Get("Authorization") == "":
		return http.StatusUnauthorized, `{"text":"Token is required","code":2}`
	case r.Header.Get("Authorization") != "Splunk 00000000-0000-0000-0000-000000000001":
		return http.StatusForbidden, `{"text":"Invalid token","code":4}`
	case len(body) == 0:
		return http.StatusBadRequest, `{"text":"No data","code":5}`
	}
	for dec, n := json.NewDecoder(bytes.NewReader(body)), 0; ; n++ {
		var m struct {
			Time  float64         `json:"time"`
			Host  string          `json:"host"`
			Event json.RawMessage `json:"event"`
		}
		err := dec.Decode(&m)
		switch {
		case err == io.EOF && n > 0:
			return http.StatusOK, `{"text":"Success","code":0}`
		case err != nil:
			return http.StatusBadRequest, fmt.Sprintf(`{"text":"Invalid data format","code":6,"invalid-event-number":%d}`, n)
		case len(m.Event) == 0:
			return http.StatusBadRequest, fmt.Sprintf(`{"text":"Event field is required","code":12,"invalid-event-number":%d}`, n)
		case string(m.Event) == `""` || string(m.Event) == "null":
			return http.StatusBadRequest, fmt.Sprintf(`{"text":"Event field cannot be blank","code":13,"invalid-event-number":%d}`, n)
		case m.Time < 1e9 || m.Time > 1e10: // seconds
			return http.StatusBadRequest, fmt.Sprintf(`{"text":"Invalid data format","code":6,"invalid-event-number":%d}`, n)
		}
	}
}

// github creates a repository_dispatch event.
// See https://docs.github.com/rest/repos/repos#create-a-repository-dispatch-event.
func github(r *http.Request, body []byte) (int, string) {
	var m struct {
		EventType     string                     `json:"event_type"`
		ClientPayload map[string]json.RawMessage `json:"client_payload"`
	}
	switch {
	case r.Header.Get("User-Agent") == "":
		return http.StatusForbidden, `{"message":"Request forbidden by administrative rules."}`
	case r.Header.Get("Authorization") != "Bearer ghp_test":
		return http.StatusUnauthorized, `{"message":"Bad credentials"}`
	case r.Method != http.MethodPost || r.URL.Path != "/repos/acme/releases/dispatches":
		return http.StatusNotFound, `{"message":"Not Found"}`
	case json.Unmarshal(body, &m) != nil:
		return http.StatusBadRequest, `{"message":"Problems parsing JSON"}`
	case m.EventType == "" || len(m.EventType) > 100:
		return http.StatusUnprocessableEntity, `{"message":"Invalid request.\n\n\"event_type\" wasn't supplied."}`
	case len(body) > 64<<10:
		return http.StatusUnprocessableEntity, `{"message":"client_payload is too large."}`
	case len(m.ClientPayload) > 10:
		return http.StatusUnprocessableEntity, `{"message":"No more than 10 properties are allowed; 11 were supplied."}`
	}
	return http.StatusNoContent, ""
}

// alertmanager is its API v2.
// See https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml.
func alertmanager(r *http.Request, body []byte) (int, string) {
	var alerts []struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
		StartsAt    time.Time         `json:"startsAt"`
		EndsAt      time.Time         `json:"endsAt"`
	}
	label := regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/api/v2/alerts":
		return http.StatusNotFound, "404 page not found"
	case !isJSON(r):
		return http.StatusUnsupportedMediaType, `{"code":415,"message":"unsupported media type"}`
	case json.Unmarshal(body, &alerts) != nil:
		return http.StatusBadRequest, `{"code":400,"message":"parsing alerts body failed"}`
	}
	for _, a := range alerts {
		labels := 0
		for name, value := range a.Labels {
			if !label.MatchString(name) {
				return http.StatusBadRequest, `"invalid label set: invalid name"`
			}
			if value != "" {
				labels++
			}
		}
		if labels == 0 {
			return http.StatusBadRequest, `"at least one label pair required"`
		}
		if !a.EndsAt.IsZero() && a.EndsAt.Before(a.StartsAt) {
			return http.StatusBadRequest, `"start time must be before end time"`
		}
	}
	return http.StatusOK, ""
}
