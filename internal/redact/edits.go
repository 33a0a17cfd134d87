package redact

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/watcherd/watcherd/pkg/event"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Edits removes and replaces values of objects before they are stored. Paths have the
// syntax of rawjson.ParsePath.
type Edits struct {
	Drop   []string // values removed with their keys
	Redact []string // values of any kind replaced by a keyed hash

	// ExposeSecrets turns off the rules for core Secrets only, but for copies of the
	// values that Drop and Redact hide.
	ExposeSecrets bool
	// KeepApplied keeps the annotation appliedManifest of every kind but the core Secret,
	// without what Drop and Redact hide in it and without manifests of Secrets.
	KeepApplied bool `json:",omitempty"`
}

// appliedManifest is the path of the annotation in which kubectl stores what it applied.
const appliedManifest = `metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]`

// Presets returns named lists of paths.
func Presets() map[string][]string {
	return map[string][]string{
		// Environment variables of containers of every sort, in every kind with a pod
		// template: revisions, custom resources and the steps of pipelines included.
		"podEnv": {"**.env[*].value"},
	}
}

// DefaultEdits returns the edits of a watch that configures none. config.DefaultDrop has
// the same as a part of the configuration: neither package knows the other, and the tests
// of package plan, which knows both, compare them.
func DefaultEdits() Edits {
	return Edits{Drop: []string{"metadata.managedFields"}}
}

// Validate returns a *field.Error for every invalid path, joined. Its Field is relative
// to the watch or route: `drop[0]`.
func (e Edits) Validate() error {
	var errs []error
	for _, list := range []struct {
		key   string
		paths []string
	}{{"drop", e.Drop}, {"redact", e.Redact}} {
		for i, p := range list.paths {
			parsed, err := rawjson.ParsePath(p)
			if err == nil && list.key == "drop" && parsed.Indexed() {
				// Edits are applied again to their own result, in which the next item has the index.
				err = fmt.Errorf("path %q drops an array item by index, which the next item then takes: drop all items with [*], or a key of each item", p)
			}
			if err != nil {
				errs = append(errs, field.Invalid(field.NewPath(list.key).Index(i), p, err.Error()))
			}
		}
	}
	return errors.Join(errs...)
}

// Variant identifies the form in which the edits leave objects of a resource. The order
// and spelling of the paths do not change it. It is empty for the default edits.
func (e Edits) Variant(gr schema.GroupResource) string {
	standard := DefaultEdits()
	if slices.Equal(e.Drop, standard.Drop) && len(e.Redact) == 0 && !e.ExposeSecrets && !e.KeepApplied {
		return ""
	}
	own := e.canonical(gr)
	if own == standard.canonical(gr) {
		return ""
	}
	sum := sha256.Sum256([]byte(own))
	return hex.EncodeToString(sum[:6])
}

func (e Edits) canonical(gr schema.GroupResource) string {
	s := fmt.Sprintf("drop=%q redact=%q", canonicalPaths(e.Drop), canonicalPaths(e.Redact))
	if e.ExposeSecrets && isSecrets(gr) {
		s += " exposed"
	}
	if e.keepsApplied(gr) {
		s += " applied"
	}
	return s
}

// Differ returns the configuration keys in which e and other differ for a resource.
func (e Edits) Differ(other Edits, gr schema.GroupResource) (keys []string) {
	if !slices.Equal(canonicalPaths(e.Drop), canonicalPaths(other.Drop)) {
		keys = append(keys, "drop")
	}
	if !slices.Equal(canonicalPaths(e.Redact), canonicalPaths(other.Redact)) {
		keys = append(keys, "redact")
	}
	if isSecrets(gr) && e.ExposeSecrets != other.ExposeSecrets {
		keys = append(keys, "exposeSecrets")
	}
	if e.keepsApplied(gr) != other.keepsApplied(gr) {
		keys = append(keys, "keep")
	}
	return keys
}

func canonicalPaths(paths []string) []string {
	out := make([]string, 0, len(paths))
	for _, p := range paths {
		if parsed, err := rawjson.ParsePath(p); err == nil {
			p = parsed.String()
		}
		out = append(out, p)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Fingerprint identifies the effective rules for a resource, built-in rules included.
// It is never 0.
func (e Edits) Fingerprint(gr schema.GroupResource) uint64 {
	var text []byte
	for _, r := range e.effective(gr) {
		text = append(strconv.AppendQuote(text, r), '\n')
	}
	sum := sha256.Sum256(text)
	return binary.BigEndian.Uint64(sum[:]) | 1
}

// Tightens reports whether the edits hide values of a resource's objects that before
// does not hide.
func (e Edits) Tightens(gr schema.GroupResource, before Edits) bool {
	if reflect.DeepEqual(e, before) {
		return false
	}
	known := before.effective(gr)
	for _, r := range e.effective(gr) {
		if !slices.Contains(known, r) {
			return true
		}
	}
	return false
}

// effective returns the rules for a resource as sorted text. Edits that keep the applied manifest
// have those of the same edits without it, but for the built-in rule of annotations.
func (e Edits) effective(gr schema.GroupResource) []string {
	var list []string
	rules := e.rules(gr, nil)
	if e.keepsApplied(gr) {
		rules = rules[:len(e.Drop)+len(e.Redact)]
	}
	for i, r := range rules {
		switch {
		case i < len(e.Drop):
			list = append(list, "drop "+canonicalPaths([]string{r.Path})[0])
		case i < len(e.Drop)+len(e.Redact):
			list = append(list, "redact "+canonicalPaths([]string{r.Path})[0])
		default:
			list = append(list, "standard "+r.Path)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Union returns edits that hide every value that e or other hides.
func (e Edits) Union(other Edits) Edits {
	return Edits{
		Drop:          canonicalPaths(slices.Concat(e.Drop, other.Drop)),
		Redact:        canonicalPaths(slices.Concat(e.Redact, other.Redact)),
		ExposeSecrets: e.ExposeSecrets && other.ExposeSecrets,
		KeepApplied:   e.KeepApplied && other.KeepApplied,
	}
}

// Usage is how often a configured path named a value.
type Usage struct {
	Key, Path string // drop or redact
	Hits      uint64
}

// Suspicious reports whether no value had a path that the configuration names.
func (u *Usage) Suspicious() bool {
	return u.Hits == 0 && !(u.Key == "drop" && slices.Contains(DefaultEdits().Drop, u.Path))
}

// Usage returns the usage of every path in an editor of the edits.
func (e Edits) Usage(editor *rawjson.Editor) []Usage {
	list := make([]Usage, 0, len(e.Drop)+len(e.Redact))
	for i, p := range e.Drop {
		list = append(list, Usage{"drop", p, editor.Hits(i)})
	}
	for i, p := range e.Redact {
		list = append(list, Usage{"redact", p, editor.Hits(len(e.Drop) + i)})
	}
	return list
}

// Editor compiles the edits for one resource. The editor fails on what is not exactly one
// JSON object.
//
// key is the secret of the keyed hashes: at least 16 random bytes. With another key
// every redacted value appears to change.
func (e Edits) Editor(gr schema.GroupResource, key []byte) (*rawjson.Editor, error) {
	if len(key) < MinKey {
		return nil, fmt.Errorf("redact: the redaction key has %d bytes, the minimum is %d", len(key), MinKey)
	}
	h := newHasher(gr, key)
	editor, err := rawjson.NewEditor(e.rules(gr, h)...)
	if err == nil && e.keepsApplied(gr) {
		h.manifest, err = e.manifestEditor(gr, key)
	}
	if err == nil && e.ExposeSecrets && isSecrets(gr) {
		h.hides, err = rawjson.NewEditor(e.paths(h)...)
	}
	if err != nil {
		return nil, fmt.Errorf("redact: edits of %s: %w", gr, err)
	}
	return editor, nil
}

// manifestEditor compiles the edits of the manifest in appliedManifest.
func (e Edits) manifestEditor(gr schema.GroupResource, key []byte) (*rawjson.Editor, error) {
	h := newHasher(gr, key)
	h.resource += " applied" // a value has another hash than in the object
	return rawjson.NewEditor(append(e.paths(h), rawjson.Rule{Path: "metadata.annotations[*]", Replace: h.replaceManifests})...)
}

// RouteEditor compiles the edits of routes for one resource: the configured paths
// without the built-in rules, also in a manifest that a watch keeps. Of a Secret that a
// watch exposes they hide copies of the values that they name, too.
func (e Edits) RouteEditor(gr schema.GroupResource, key []byte) (*rawjson.Editor, error) {
	if isSecrets(gr) && e.hidesValues() {
		e.ExposeSecrets = true
		return e.Editor(gr, key)
	}
	h := newHasher(gr, key)
	editor, err := rawjson.NewEditor(append(e.paths(h), rawjson.Rule{Path: appliedManifest, Replace: h.editManifest})...)
	if err == nil {
		h.manifest, err = e.manifestEditor(gr, key)
	}
	if err != nil {
		return nil, fmt.Errorf("redact: edits of routes: %w", err)
	}
	return editor, nil
}

// rules returns the rules in order of precedence on one value. A drop precedes them
// all.
func (e Edits) rules(gr schema.GroupResource, h *hasher) []rawjson.Rule {
	rules := e.paths(h)
	if isSecrets(gr) && e.ExposeSecrets {
		if !e.hidesValues() {
			return rules
		}
	} else if isSecrets(gr) {
		rules = append(rules,
			rawjson.Rule{Path: "data[*]", Replace: h.replace},
			rawjson.Rule{Path: "stringData[*]", Replace: h.replace},
		)
	}
	annotations := h.replaceManifests
	if e.keepsApplied(gr) {
		rules = append(rules, rawjson.Rule{Path: appliedManifest, Replace: h.editManifest})
	}
	if isSecrets(gr) {
		annotations = h.replaceCopies
		for _, p := range []string{"metadata.labels[*]", "metadata.finalizers[*]", "metadata.ownerReferences[*][*]", "metadata.generateName", "type"} {
			rules = append(rules, rawjson.Rule{Path: p, Replace: h.replaceMentions})
		}
	}
	return append(rules, rawjson.Rule{Path: "metadata.annotations[*]", Replace: annotations})
}

// hidesValues reports whether the paths can name values of a Secret.
func (e Edits) hidesValues() bool {
	return slices.ContainsFunc(e.Drop, hidesValues) || slices.ContainsFunc(e.Redact, hidesValues)
}

// hidesValues reports whether a path can name values of a Secret.
func hidesValues(path string) bool {
	p, err := rawjson.ParsePath(path)
	key, named := p.Key()
	keys := 0
	for first, rest, ok := p.Cut(); ok; first, rest, ok = rest.Cut() {
		if !first.Deep() {
			keys++
		}
	}
	return err == nil && keys <= 2 && (!named || key == "data" || key == "stringData")
}

func (e Edits) paths(h *hasher) []rawjson.Rule {
	var rules []rawjson.Rule
	for _, p := range e.Drop {
		rules = append(rules, rawjson.Rule{Path: p})
	}
	for _, p := range e.Redact {
		rules = append(rules, rawjson.Rule{Path: p, Replace: h.replace})
	}
	return rules
}

// keepsApplied reports whether the applied manifest of a resource's objects is kept.
func (e Edits) keepsApplied(gr schema.GroupResource) bool { return e.KeepApplied && !isSecrets(gr) }

// isSecrets reports whether a resource is the core Secret.
func isSecrets(gr schema.GroupResource) bool {
	return gr.Group == "" && gr.Resource == "secrets"
}

// MinKey is the minimum length of a redaction key in bytes.
const MinKey = 16

// KeyID identifies a redaction key.
func KeyID(key []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("id of the redaction key"))
	return hex.EncodeToString(mac.Sum(nil)[:6])
}

// hasher replaces a value by the first digits of an HMAC-SHA256, see [event.RedactedPrefix], of
// the resource, the namespace and name of the object, the path of the value and its JSON.
// So a change stays visible, and equal values of two objects, or of two keys of one, have
// different hashes: a guess that is hashed in another place proves nothing.
// Without the key even a short value cannot be found by trial.
type hasher struct {
	resource string
	hides    *rawjson.Editor // of exposed Secrets: what hides some of their values
	manifest *rawjson.Editor // of an applied manifest that is kept
	pool     sync.Pool       // of *keyed
}

type keyed struct {
	mac  hash.Hash
	sum  [sha256.Size]byte
	path []byte
}

func newHasher(gr schema.GroupResource, key []byte) *hasher {
	key = bytes.Clone(key)
	return &hasher{resource: gr.String(), pool: sync.Pool{New: func() any {
		return &keyed{mac: hmac.New(sha256.New, key)}
	}}}
}

// replace appends the JSON string that replaces value. A hash is copied, so that
// redacting twice gives the same result.
func (h *hasher) replace(dst, value []byte, at *rawjson.Place) []byte {
	if event.IsRedacted(value) {
		return append(dst, value...)
	}
	k := h.pool.Get().(*keyed)
	defer h.pool.Put(k)
	k.mac.Reset()
	namespace, name := at.Of()
	k.path = append(binary.AppendUvarint(k.path[:0], uint64(len(h.resource))), h.resource...)
	k.path = append(binary.AppendUvarint(k.path, uint64(len(namespace))), namespace...)
	k.path = append(binary.AppendUvarint(k.path, uint64(len(name))), name...)
	k.mac.Write(append(at.AppendPath(k.path), 0)) // no path has a zero byte
	k.mac.Write(value)
	sum := k.mac.Sum(k.sum[:0])
	dst = append(dst, '"')
	dst = append(dst, event.RedactedPrefix...)
	dst = hex.AppendEncode(dst, sum[:event.RedactedDigits/2])
	return append(dst, '"')
}
