// Command elasticsearch is a server for tests of the part of Elasticsearch's API that watcherd uses, made from its
// documentation: bulk with create and index, external versions, data streams, index templates, deletion by a
// query. It refuses what is refused by the documentation. Its argument is a JSON document (spec). It prints its address and
// ends with its input. What it accepts it appends to a file, a JSON document a line, which it reads when it starts.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/watcherd/watcherd/internal/testservers/servers/program"
)

// spec is what internal/testservers calls ElasticsearchSpec.
type spec struct {
	Dir        string // accepted has what it accepted; refuse, if it is there, the text that no document may hold
	Port       int
	Cert       string // PEM; TLS if not empty
	Key        string
	APIKey     string
	User       string
	Password   string
	OpenSearch bool
	MaxBytes   int64 // http.max_content_length; 0: 100 MiB
}

func main() { program.Main(run) }

func run(_ context.Context, of *spec) error {
	s := &server{spec: *of, indices: map[string]map[string]document{}, templates: map[string]indexTemplate{}}
	if s.spec.MaxBytes == 0 {
		s.spec.MaxBytes = 100 << 20
	}
	if err := s.load(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.spec.Port))
	if err != nil {
		return err
	}
	if s.spec.Cert != "" {
		pair, err := tls.X509KeyPair([]byte(s.spec.Cert), []byte(s.spec.Key))
		if err != nil {
			return err
		}
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.info)
	mux.HandleFunc("GET /_index_template/{name}", s.getTemplate)
	mux.HandleFunc("PUT /_index_template/{name}", s.putTemplate)
	mux.HandleFunc("POST /_bulk", s.bulk)
	mux.HandleFunc("POST /{index}/_delete_by_query", s.deleteByQuery)
	go func() { _ = (&http.Server{Handler: s.guard(mux), ReadHeaderTimeout: time.Minute}).Serve(listener) }()
	fmt.Println(listener.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// server is the state of the cluster.
type server struct {
	spec spec

	mu        sync.Mutex // guards what follows
	indices   map[string]map[string]document
	templates map[string]indexTemplate
	accepted  *os.File
}

// document is one of an index.
type document struct {
	Version uint64
	Source  json.RawMessage
}

// indexTemplate is what the server heeds of one.
type indexTemplate struct {
	IndexPatterns []string  `json:"index_patterns"`
	DataStream    *struct{} `json:"data_stream"`
	Template      struct {
		Mappings struct {
			Properties map[string]struct {
				Type  string `json:"type"`
				Depth int    `json:"depth_limit"`
			} `json:"properties"`
		} `json:"mappings"`
	} `json:"template"`
}

// line is one of the file of what was accepted.
type line struct {
	Op      string // create, index, delete or template
	Index   string
	ID      string
	Version uint64
	Source  json.RawMessage
}

func (s *server) load() error {
	path := filepath.Join(s.spec.Dir, "accepted")
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	whole := content[:bytes.LastIndexByte(content, '\n')+1] // a kill may cut the last line, which was not answered
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(whole))
	lines.Buffer(nil, 256<<20)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return err
		}
		if err := s.apply(l); err != nil {
			return err
		}
	}
	s.accepted, err = os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o600)
	return errors.Join(err, lines.Err())
}

func (s *server) apply(l line) error {
	switch l.Op {
	case "template":
		var t indexTemplate
		if err := json.Unmarshal(l.Source, &t); err != nil {
			return err
		}
		s.templates[l.ID] = t
	case "delete":
		delete(s.indices[l.Index], l.ID)
	default:
		if s.indices[l.Index] == nil {
			s.indices[l.Index] = map[string]document{}
		}
		s.indices[l.Index][l.ID] = document{l.Version, l.Source}
	}
	return nil
}

// record notes and applies.
func (s *server) record(l line) error {
	if err := s.apply(l); err != nil {
		return err
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = s.accepted.Write(append(b, '\n'))
	return err
}

// failure answers as the API does.
func failure(w http.ResponseWriter, status int, kind, reason string) {
	answer(w, status, map[string]any{"error": map[string]any{"type": kind, "reason": reason, "root_cause": []any{}}, "status": status})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-elastic-product", "Elasticsearch")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// guard authenticates and unpacks.
func (s *server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, want := r.Header.Get("Authorization"), ""
		switch {
		case s.spec.APIKey != "":
			want = "ApiKey " + s.spec.APIKey
		case s.spec.Password != "":
			want = "Basic " + base64.StdEncoding.EncodeToString([]byte(s.spec.User+":"+s.spec.Password))
		}
		if want != "" && got != want {
			w.Header().Set("WWW-Authenticate", "ApiKey")
			failure(w, http.StatusUnauthorized, "security_exception", "unable to authenticate with provided credentials: "+got)
			return
		}
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				failure(w, http.StatusBadRequest, "illegal_argument_exception", err.Error())
				return
			}
			r.Body = io.NopCloser(z)
		}
		next.ServeHTTP(w, r)
	})
}

func (s *server) info(w http.ResponseWriter, _ *http.Request) {
	version := map[string]any{"number": "9.1.0", "build_flavor": "default", "lucene_version": "10.2.2"}
	if s.spec.OpenSearch {
		version = map[string]any{"distribution": "opensearch", "number": "3.1.0"}
	}
	answer(w, http.StatusOK, map[string]any{"name": "test", "cluster_name": "test", "version": version})
}

func (s *server) getTemplate(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.PathValue("name")
	t, ok := s.templates[name]
	if !ok {
		failure(w, http.StatusNotFound, "resource_not_found_exception", "index template matching ["+name+"] not found")
		return
	}
	answer(w, http.StatusOK, map[string]any{"index_templates": []any{map[string]any{"name": name, "index_template": t}}})
}

func (s *server) putTemplate(w http.ResponseWriter, r *http.Request) {
	source, err := io.ReadAll(r.Body)
	var t indexTemplate
	if err == nil {
		err = json.Unmarshal(source, &t)
	}
	for name, field := range t.Template.Mappings.Properties {
		known := []string{"keyword", "long", "text", "date_nanos", "flattened"}
		if s.spec.OpenSearch {
			known[len(known)-1] = "flat_object"
		}
		if !slices.Contains(known, field.Type) {
			err = fmt.Errorf("no handler for type [%s] declared on field [%s]", field.Type, name)
		}
	}
	if err != nil || len(t.IndexPatterns) == 0 {
		failure(w, http.StatusBadRequest, "mapper_parsing_exception", fmt.Sprint(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.record(line{Op: "template", ID: r.PathValue("name"), Source: source}); err != nil {
		failure(w, http.StatusInternalServerError, "exception", err.Error())
		return
	}
	answer(w, http.StatusOK, map[string]any{"acknowledged": true})
}

// action is the first line of an operation.
type action struct {
	Index       string `json:"_index"`
	ID          string `json:"_id"`
	Version     uint64 `json:"version"`
	VersionType string `json:"version_type"`
}

// result is the answer to an operation.
type result struct {
	Index  string      `json:"_index,omitempty"`
	ID     string      `json:"_id,omitempty"`
	Status int         `json:"status"`
	Error  *itemFailed `json:"error,omitempty"`
}

type itemFailed struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

func failed(status int, kind, format string, args ...any) result {
	return result{Status: status, Error: &itemFailed{kind, fmt.Sprintf(format, args...)}}
}

func (s *server) bulk(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, s.spec.MaxBytes+1))
	switch {
	case err != nil:
		return
	case int64(len(body)) > s.spec.MaxBytes:
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	case !strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-ndjson"):
		failure(w, http.StatusNotAcceptable, "media_type_header_exception", "Content-Type")
		return
	case len(body) == 0 || body[len(body)-1] != '\n':
		failure(w, http.StatusBadRequest, "illegal_argument_exception", "The bulk request must be terminated by a newline [\\n]")
		return
	}
	lines := bytes.Split(body[:len(body)-1], []byte("\n"))
	if len(lines)%2 != 0 {
		failure(w, http.StatusBadRequest, "illegal_argument_exception", "a source line is missing")
		return
	}
	refused, _ := os.ReadFile(filepath.Join(s.spec.Dir, "refuse"))
	s.mu.Lock()
	defer s.mu.Unlock()
	var items []map[string]result
	errored := false
	for i := 0; i < len(lines); i += 2 {
		var named map[string]action
		d := json.NewDecoder(bytes.NewReader(lines[i]))
		d.DisallowUnknownFields()
		if err := d.Decode(&named); err != nil || len(named) != 1 {
			failure(w, http.StatusBadRequest, "illegal_argument_exception", fmt.Sprintf("Malformed action/metadata line [%d]: %v", i+1, err))
			return
		}
		for op, a := range named {
			it := s.write(op, a, lines[i+1], refused)
			errored = errored || it.Error != nil
			if r.URL.Query().Get("filter_path") == "" {
				it.Index, it.ID = a.Index, a.ID
			}
			items = append(items, map[string]result{op: it})
		}
	}
	document := map[string]any{"items": items}
	if r.URL.Query().Get("filter_path") == "" {
		document["took"], document["errors"] = 1, errored
	}
	answer(w, http.StatusOK, document)
}

var indexName = regexp.MustCompile(`^[^-_+A-Z\\/*?"<>| ,#:][^A-Z\\/*?"<>| ,#:]*$`)

// write does one operation.
func (s *server) write(op string, a action, source, refused []byte) result {
	switch {
	case op != "create" && op != "index":
		return failed(400, "illegal_argument_exception", "unknown operation %s", op)
	case !indexName.MatchString(a.Index) || len(a.Index) > 255:
		return failed(400, "invalid_index_name_exception", "Invalid index name [%s]", a.Index)
	case len(a.ID) > 512:
		return failed(400, "illegal_argument_exception", "id [%s] is too long, must be no longer than 512 bytes but was: %d", a.ID, len(a.ID))
	case len(refused) > 0 && bytes.Contains(source, refused):
		return failed(400, "document_parsing_exception", "failed to parse field [event] of type [flattened] in document with id '%s'", a.ID)
	}
	document, depth, err := parse(source)
	if err != nil {
		return failed(400, "document_parsing_exception", "failed to parse: %v", err)
	}
	stream := false
	for _, t := range s.templates {
		if !slices.ContainsFunc(t.IndexPatterns, func(p string) bool { return match(p, a.Index) }) {
			continue
		}
		stream = t.DataStream != nil
		for name, field := range t.Template.Mappings.Properties {
			limit := field.Depth
			if limit == 0 {
				limit = 20
			}
			if field.Type == "flattened" && depth[name] > limit {
				return failed(400, "document_parsing_exception", "the provided flattened field [%s] exceeds the maximum depth limit of [%d]", name, limit)
			}
		}
	}
	old, exists := s.indices[a.Index][a.ID]
	version := a.Version
	switch {
	case stream && op != "create":
		return failed(400, "illegal_argument_exception", "only write ops with an op_type of create are allowed in data streams")
	case stream && document["@timestamp"] == nil:
		return failed(400, "document_parsing_exception", "data stream timestamp field [@timestamp] is missing")
	case op == "create" && exists:
		return failed(409, "version_conflict_engine_exception", "[%s]: version conflict, document already exists (current version [%d])", a.ID, old.Version)
	case a.VersionType == "external_gte" && exists && a.Version < old.Version:
		return failed(409, "version_conflict_engine_exception", "[%s]: version conflict, current version [%d] is higher than the one provided [%d]", a.ID, old.Version, a.Version)
	case a.VersionType == "" && a.Version != 0 || a.VersionType != "" && a.VersionType != "external_gte":
		return failed(400, "illegal_argument_exception", "version [%d] of type [%s]", a.Version, a.VersionType)
	case a.VersionType == "":
		version = old.Version + 1
	}
	if err := s.record(line{Op: op, Index: a.Index, ID: a.ID, Version: version, Source: slices.Clone(source)}); err != nil {
		return failed(500, "exception", "%v", err)
	}
	if exists {
		return result{Status: 200}
	}
	return result{Status: 201}
}

// parse reads a document as strictly as the server does: a key twice is an error. It returns the members of the top,
// and how deep each is.
func parse(source []byte) (top map[string]any, depth map[string]int, err error) {
	d := json.NewDecoder(bytes.NewReader(source))
	d.UseNumber()
	top, depth = map[string]any{}, map[string]int{}
	var value func(level int, key string) error
	value = func(level int, key string) error {
		depth[key] = max(depth[key], level)
		token, err := d.Token()
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'):
			seen := map[string]bool{}
			for d.More() {
				name, err := d.Token()
				if err != nil {
					return err
				}
				text, _ := name.(string)
				if seen[text] {
					return fmt.Errorf("duplicate field '%s'", text)
				}
				seen[text] = true
				under := key
				if level == 0 {
					under, top[text] = text, true
				}
				if err := value(level+1, under); err != nil {
					return err
				}
			}
			_, err = d.Token()
		case json.Delim('['):
			for d.More() {
				if err := value(level, key); err != nil {
					return err
				}
			}
			_, err = d.Token()
		default:
			if level == 0 {
				err = errors.New("a document is an object")
			}
		}
		return err
	}
	if err := value(0, ""); err != nil {
		return nil, nil, err
	}
	if d.More() {
		return nil, nil, errors.New("there is more behind the document")
	}
	return top, depth, nil
}

// match reports whether a name matches a pattern with stars.
func match(pattern, name string) bool {
	expression := "^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$"
	return regexp.MustCompile(expression).MatchString(name)
}

func (s *server) deleteByQuery(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Query struct {
			Bool struct {
				Filter []struct {
					Range  map[string]struct{ Lt string }
					Term   map[string]string
					Exists struct{ Field string }
				}
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		failure(w, http.StatusBadRequest, "parsing_exception", err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for index, documents := range s.indices {
		if !match(r.PathValue("index"), index) {
			continue
		}
		for id, doc := range documents {
			var fields map[string]any
			hit := json.Unmarshal(doc.Source, &fields) == nil
			for _, f := range body.Query.Bool.Filter {
				for field, limit := range f.Range {
					seconds, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(limit.Lt, "now-"), "s"))
					at, _ := fields[field].(string)
					t, timeErr := time.Parse(time.RFC3339Nano, at)
					hit = hit && err == nil && timeErr == nil && t.Before(time.Now().Add(-time.Duration(seconds)*time.Second))
				}
				for field, value := range f.Term {
					hit = hit && fields[field] == value
				}
				hit = hit && (f.Exists.Field == "" || fields[f.Exists.Field] != nil)
			}
			if hit {
				if err := s.record(line{Op: "delete", Index: index, ID: id}); err != nil {
					failure(w, http.StatusInternalServerError, "exception", err.Error())
					return
				}
			}
		}
	}
	answer(w, http.StatusOK, map[string]any{"task": "test:1"})
}
