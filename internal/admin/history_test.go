package admin

import (
	"testing"

	"github.com/watcherd/watcherd/internal/history"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/internal/record"
	"github.com/watcherd/watcherd/pkg/compact"
)

// TestHistory asks the doors to the history of a log that has none.
func TestHistory(t *testing.T) {
	f := newFixture(t)
	dicts := compact.NewDictionaries(nil)
	f.cfg.History = history.New(f.store, ledger.New(f.store, dicts), &record.Inflater{Dictionaries: dicts})
	f.serve()
	for path, want := range map[string]struct {
		code int
		says string
	}{
		"history":                                {200, `"items":[]`},
		"history?resource=po&type=added,deleted": {200, `"complete":false`},
		"history?type=odd":                       {400, "unknown type"},
		"history?resource=nodes":                 {404, "no watch reads it"},
		"history?limit=0":                        {400, "limit must be"},
		"history?order=up":                       {400, "order must be"},
		"history?continue=!":                     {400, "continue is not"},
		"history?path=spec[":                     {400, "path"},
		"history?from=soon":                      {400, "from"},
		"history/histogram?buckets=3&from=1h":    {200, `"buckets":[`},
		"history/histogram?buckets=201":          {400, "from 1 to 200"},
		"changes?from=-5m":                       {200, `"churned":0`},
		"changes":                                {400, "from is required"},
		"objects/pods/a/b/versions":              {200, `"before":"unknown-before"`},
		"objects/pods/a/b/diff":                  {404, "no change of"},
		"objects/pods/a/b/diff?from=2h&to=1h":    {200, `"diff":""`},
		"objects/pods/a/b?at=-5m":                {200, `"as":"unknown-before"`},
		"objects/pods?at=2026-01-31T12:00:00Z":   {200, `"items":[]`},
		"objects/pods?at=noon":                   {400, "at"},
		"objects/pods?at=1h&limit=x":             {400, "limit must be"},
	} {
		code, body := f.get("/api/v1/" + path)
		f.expect(code, body, want.code, want.says)
	}
}
