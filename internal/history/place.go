package history

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/watcherd/watcherd/internal/headline"
	"github.com/watcherd/watcherd/internal/ledger"
	"github.com/watcherd/watcherd/pkg/compact"
)

// ListPlace is where a list of objects is continued: in the state of a time, after an object.
type ListPlace struct {
	At    time.Time `json:"at"`
	After string    `json:"after"`
}

// Token is the place as a page gives it.
func (p ListPlace) Token() string {
	b, _ := json.Marshal(p) //nolint:errchkjson // a time and a text
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseListPlace reads a token. ErrContinue: no page has given it by now.
func ParseListPlace(token string, now time.Time) (p ListPlace, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || json.Unmarshal(b, &p) != nil || p.After == "" || p.At.IsZero() || p.At.After(now) {
		return p, ErrContinue
	}
	return p, nil
}

// maxPlace is how much of a name the place to continue a list at has: a Role has a name of any length, and a request has a bound.
const maxPlace = 1 << 10

// Place returns a name for a place to continue a list at: a long one as its begin and a hash, separated by a slash and distinct from
// every other name, as no name ends so.
func Place(name string) string {
	if len(name) <= maxPlace {
		return name
	}
	end := maxPlace
	for !utf8.RuneStart(name[end]) {
		end--
	}
	return fmt.Sprintf("%s/%x", name[:end], sha256.Sum256([]byte(name)))
}

// Begin returns what a name at a place begins with, and whether the place has only that and a hash.
func Begin(place string) (begin string, long bool) {
	if len(place) <= maxPlace {
		return place, false
	}
	return place[:len(place)-1-2*sha256.Size], true
}

// whole returns the key in the ledger that a place has, which may be long. ErrContinue: it is not known any more.
func (r *Reader) whole(ctx context.Context, all Objects, at string) (string, error) {
	begin, long := Begin(at)
	if !long {
		return at, nil
	}
	found := ""
	for _, p := range r.partitions(all.Resource) {
		_, err := r.ledger.Scan(p, begin, "", func(key string, _ *compact.Object) error {
			if Place(key) != at {
				return ctx.Err()
			}
			found = key
			return ledger.ErrEnough
		})
		if err = ledger.IgnoreUnreadable(err); found != "" || err != nil {
			return found, err
		}
	}
	keep := func(row *headline.Row) bool {
		return same(row.Resource, all.Resource) && len(ledger.Key(row.Namespace, row.Name)) > maxPlace
	}
	err := r.rows(ctx, r.store.LogStats().First, newest, false, all.Resource.Resource, keep, func(row *headline.Row) error {
		if key := ledger.Key(row.Namespace, row.Name); Place(key) == at {
			found = key
			return errEnough
		}
		return ctx.Err()
	})
	if err = ledger.IgnoreUnreadable(ignoreEnough(err)); err == nil && found == "" {
		err = ErrContinue
	}
	return found, err
}
