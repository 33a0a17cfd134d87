package testservers

import (
	"encoding/json"
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
)

// ElasticsearchSpec is what the server is started with.
type ElasticsearchSpec struct {
	Dir        string // of what it accepts; "": one of the test
	Port       int    // 0: any
	Cert       string // PEM; TLS if not empty
	Key        string
	APIKey     string // demanded if not empty
	User       string
	Password   string // demanded if not empty
	OpenSearch bool   // it is OpenSearch
	MaxBytes   int64  // of a request; 0: 100 MiB
}

// Elasticsearch is a server of the part of Elasticsearch's API that watcherd uses, made from its documentation: neither
// Elasticsearch nor OpenSearch can be had where the tests run. Its methods may be called from any goroutine, one at a time.
type Elasticsearch struct {
	*process

	spec *ElasticsearchSpec
}

// IndexOp is what the server did.
type IndexOp struct {
	Op      string // create, index, delete or template
	Index   string
	ID      string
	Version uint64
	Source  json.RawMessage
}

// StartElasticsearch starts a server that is killed at the end of the test.
func StartElasticsearch(t testing.TB, spec ElasticsearchSpec) *Elasticsearch {
	t.Helper()
	if spec.Dir == "" {
		spec.Dir = t.TempDir()
	}
	e := &Elasticsearch{spec: &spec}
	e.process = run(t, playground.Elasticsearch(), func(port int) any {
		if spec.Port == 0 {
			spec.Port = port
		}
		return spec
	})
	return e
}

// Accepted is what it did so far, in its order.
func (e *Elasticsearch) Accepted() []IndexOp { return accepted[IndexOp](e.t, e.spec.Dir) }

// Documents are the documents of an index by their ids.
func (e *Elasticsearch) Documents(index string) map[string]json.RawMessage {
	e.t.Helper()
	out := map[string]json.RawMessage{}
	for _, op := range e.Accepted() {
		switch {
		case op.Index != index:
		case op.Op == "delete":
			delete(out, op.ID)
		default:
			out[op.ID] = op.Source
		}
	}
	return out
}

// Refuse makes it refuse every document that holds the text; "" ends that.
func (e *Elasticsearch) Refuse(text string) { refuse(e.t, e.spec.Dir, text) }

// SetAPIKey makes it demand another key from its next start on.
func (e *Elasticsearch) SetAPIKey(key string) { e.spec.APIKey = key }
