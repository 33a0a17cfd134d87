package rawwatch

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/progress"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// maxSkipped bounds the record of skipped objects, by which each is reported once. An entry takes about 100 bytes.
const maxSkipped = 1 << 16

// Fields that are read without the rest of an object.
var (
	kindPath      = rawjson.MustParsePath("kind")
	namespacePath = rawjson.MustParsePath("metadata.namespace")
	namePath      = rawjson.MustParsePath("metadata.name")
	uidPath       = rawjson.MustParsePath("metadata.uid")
	versionPath   = rawjson.MustParsePath("metadata.resourceVersion")
)

// objectID identifies an object that is otherwise unreadable.
type objectID struct {
	namespace, name string
	uid, version    string // "" if unreadable
}

// identify reads the id of an unreadable object from its JSON. It fails for an error that
// is not the object's.
func identify(raw []byte, cause error) (id objectID, ok bool) {
	if errors.Is(cause, ErrMaker) {
		return objectID{}, false
	}
	text := func(p rawjson.Path) (s string) {
		if v, ok := rawjson.Lookup(raw, p); !ok || json.Unmarshal(v, &s) != nil {
			return ""
		}
		return s
	}
	id = objectID{text(namespacePath), text(namePath), text(uidPath), text(versionPath)}
	return id, id.name != ""
}

// skip counts an unreadable object and reports each of its versions once. It returns the
// known object of that name, nil if there is none.
func (s *Source) skip(ctx context.Context, id objectID, cause error) (known runtime.Object) {
	s.stats.contact(func(t *Counters) { t.DecodeErrors++; t.Skipped++ })
	known = s.knownObject(id.namespace, id.name)
	if s.reported(id) {
		return known
	}
	klog.FromContext(ctx).Error(cause, "an unreadable object is skipped", "resource", resourceName(s.cfg.GVR),
		"namespace", id.namespace, "name", shown(id.name), "resourceVersion", id.version)
	if s.cfg.OnGap != nil {
		now := time.Now()
		gap := Gap{Cause: CauseUnreadable, Namespace: id.namespace, Name: nameOf(id.name), To: id.version, FromTime: now, ToTime: now}
		if o, ok := known.(metav1.Object); ok {
			gap.From = o.GetResourceVersion()
		}
		s.cfg.OnGap(gap)
	}
	return known
}

// reported notes a version of a skipped object, and reports whether it was noted before.
func (s *Source) reported(id objectID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := skippedKey(id.namespace, id.name)
	if version, noted := s.skipped[key]; noted && version == id.version {
		return true
	}
	if s.skipped == nil {
		s.skipped = map[[sha256.Size]byte]string{}
	}
	for other := range s.skipped { // any: without all of them, each list would report all again
		if len(s.skipped) < maxSkipped {
			break
		}
		delete(s.skipped, other)
	}
	s.skipped[key] = id.version
	return false
}

// Skipped returns the version of an object that was skipped last because it could not be read, "" if that could
// not be read either. ok is false if none is known.
func (s *Source) Skipped(namespace, name string) (version string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, ok = s.skipped[skippedKey(namespace, name)]
	return version, ok
}

// maxShown bounds what is kept, and logged, of the name of an object: that of a Role may be as long as a request.
const maxShown = 1 << 10

// shown is a name in a log and in an error.
func shown(name string) string {
	if len(name) <= maxShown {
		return name
	}
	return strings.ToValidUTF8(name[:maxShown], "") + "..."
}

// maxName is about what the name of an object has at most that can be read: see compact.Codec.
const maxName = math.MaxUint16 - 256

// nameOf is a name, of a longer one the begin and a hash, separated by a slash, which no name has.
func nameOf(name string) string {
	if len(name) <= maxName {
		return name
	}
	return fmt.Sprintf("%s/%x", shown(name), sha256.Sum256([]byte(name)))
}

// skippedKey is the key of a skipped object.
func skippedKey(namespace, name string) [sha256.Size]byte {
	return sha256.Sum256([]byte(namespace + "/" + name))
}

func (s *Source) at(o runtime.Object, position uint64) runtime.Object {
	if s.cfg.At == nil {
		return o
	}
	return s.cfg.At(o, position)
}

// unmade handles an unreadable item of a list: the known object stays in its place.
func (b *listBuilder) unmade(raw []byte, position uint64, cause error) error {
	s := b.source
	id, ok := identify(raw, cause)
	if !ok {
		return cause
	}
	if known := s.skip(b.ctx, id, cause); known != nil {
		b.list.Items = append(b.list.Items, s.at(known, position))
	} else if n := len(b.list.Items); n > 0 && position > 0 {
		b.list.Items[n-1] = s.at(b.list.Items[n-1], position)
	}
	return nil
}

// unmade handles an unreadable event, which is skipped. One that is no JSON may have been damaged in transit: the watch retries that
// like any failure before. A deletion is forwarded with the known object.
func (w *stream) unmade(ctx context.Context, typ watch.EventType, raw []byte, cause error) error {
	s := w.source
	if (w.unreadable < unreadableAttempts-1 || w.unreadAt != s.progress.Resume()) && !json.Valid(raw) {
		return cause
	}
	id, ok := identify(raw, cause)
	if !ok {
		return cause
	}
	known := s.skip(ctx, id, cause)
	version := progress.ParseVersion(id.version)
	event := s.progress.EventID(string(typ), []byte(id.uid), []byte(id.namespace), []byte(id.name))
	if typ == watch.Deleted && known != nil {
		position := s.progress.Next()
		return w.forward(watch.Event{Type: typ, Object: s.at(known, position)}, position, version, event)
	}
	if !version.None() {
		s.progress.Skip(version, event)
	}
	return nil
}
