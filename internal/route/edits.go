package route

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// Edits is what a watch changes about objects before anything else sees them.
// Paths are those of rawjson.ParsePath.
type Edits struct {
	Drop   []string // values that go, with their keys
	Redact []string // values of any kind that a keyed hash takes the place of

	// ExposeSecrets turns off the rules for core Secrets, and for nothing else.
	ExposeSecrets bool
}

// appliedManifests are the annotations in which tools keep the whole manifest that
// they applied, in text or compressed: a Secret's values are in them a second time
// (CVE-2019-10223, CVE-2019-17110 in kube-state-metrics), and so is all else that a
// watch redacts.
func appliedManifests() []string {
	return []string{
		"kubectl.kubernetes.io/last-applied-configuration",
		"kapp.k14s.io/original",
		"objectset.rio.cattle.io/applied",
		"banzaicloud.com/last-applied",
	}
}

// DefaultEdits are those of a watch that configures none.
func DefaultEdits() Edits {
	return Edits{Drop: []string{"metadata.managedFields"}}
}

// Validate reports every path that is not valid, as a *SpecError whose Path is
// relative to the watch (`drop[0]`), joined.
func (e Edits) Validate() error {
	var errs []error
	for _, list := range []struct {
		key   string
		paths []string
	}{{"drop", e.Drop}, {"redact", e.Redact}} {
		for i, p := range list.paths {
			parsed, err := rawjson.ParsePath(p)
			if err == nil && list.key == "drop" && parsed.Indexed() {
				// Edits are applied again to what they made, where the next item has its number.
				err = fmt.Errorf("path %q drops one item of an array by its number, which the next item then has: drop all by [*], or a key within them", p)
			}
			if err != nil {
				errs = append(errs, &SpecError{Index: -1, Path: fmt.Sprintf("%s[%d]", list.key, i), Msg: err.Error()})
			}
		}
	}
	if len(errs) == 0 {
		if _, err := rawjson.NewEditor(e.paths(nil)...); err != nil {
			errs = append(errs, &SpecError{Index: -1, Path: cmp.Or(wide(e.Drop, "drop"), "redact"), Msg: err.Error()})
		}
	}
	return errors.Join(errs...)
}

// wide is key if one of its paths has a wildcard.
func wide(paths []string, key string) string {
	if slices.ContainsFunc(paths, func(p string) bool { return strings.Contains(p, "*") }) {
		return key
	}
	return ""
}

// Variant tells apart the forms in which different edits leave objects of one
// resource: it is the same for the same outcome, whatever the order or spelling of
// the paths, and empty for the default edits.
func (e Edits) Variant(gr schema.GroupResource) string {
	own, standard := e.canonical(gr), DefaultEdits().canonical(gr)
	if own == standard {
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
	return s
}

// Differ are the keys of a watch in which the outcome of e and other differs for a
// resource.
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

// Fingerprint identifies what the edits make of objects of one resource. It is never
// 0, and changes with the rules that every watch has, too.
func (e Edits) Fingerprint(gr schema.GroupResource) uint64 {
	h := sha256.New()
	for _, r := range e.effective(gr) {
		fmt.Fprintf(h, "%q\n", r)
	}
	return binary.BigEndian.Uint64(h.Sum(nil)) | 1
}

// Tightens reports whether the edits hide anything of a resource's objects that the
// ones before do not.
func (e Edits) Tightens(gr schema.GroupResource, before Edits) bool {
	known := before.effective(gr)
	for _, r := range e.effective(gr) {
		if !slices.Contains(known, r) {
			return true
		}
	}
	return false
}

// effective lists the rules for a resource as text, sorted.
func (e Edits) effective(gr schema.GroupResource) []string {
	var list []string
	for i, r := range e.rules(gr, nil) {
		kind := "standard "
		switch {
		case i < len(e.Drop):
			kind = "drop "
		case i < len(e.Drop)+len(e.Redact):
			kind = "redact "
		}
		list = append(list, kind+canonicalPaths([]string{r.Path})[0])
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Union are edits that hide what either hides.
func (e Edits) Union(other Edits) Edits {
	return Edits{
		Drop:          canonicalPaths(slices.Concat(e.Drop, other.Drop)),
		Redact:        canonicalPaths(slices.Concat(e.Redact, other.Redact)),
		ExposeSecrets: e.ExposeSecrets && other.ExposeSecrets,
	}
}

// minKey is how many bytes a redaction key must have.
const minKey = 16

// Func compiles the edits for one resource. The function appends the edited JSON
// of one object to dst, is safe for concurrent use and fails only on what is not
// one JSON object; then nothing of the object may be used.
//
// key is the secret of the keyed hashes: at least 16 random bytes, kept as long as
// the store, or every redacted value seems to change.
func (e Edits) Func(gvr schema.GroupVersionResource, key []byte) (func(dst, raw []byte) ([]byte, error), error) {
	editor, err := e.Editor(gvr.GroupResource(), key)
	if err != nil {
		return nil, err
	}
	return editor.Append, nil
}

// Editor compiles the edits for one resource.
func (e Edits) Editor(gr schema.GroupResource, key []byte) (*rawjson.Editor, error) {
	if len(key) < minKey {
		return nil, errors.New("route: the redaction key is shorter than " + strconv.Itoa(minKey) + " bytes")
	}
	editor, err := rawjson.NewEditor(e.rules(gr, newHasher(key))...)
	if err != nil {
		return nil, fmt.Errorf("route: edits of %s: %w", gr, err)
	}
	return editor, nil
}

// RouteEditor compiles the edits of routes: the paths alone, without the rules that
// watches have for secrets.
func (e Edits) RouteEditor(key []byte) (*rawjson.Editor, error) {
	editor, err := rawjson.NewEditor(e.paths(newHasher(key))...)
	if err != nil {
		return nil, fmt.Errorf("route: edits: %w", err)
	}
	return editor, nil
}

// rules are given in the order in which they win over one another on one value;
// a drop wins over them all.
func (e Edits) rules(gr schema.GroupResource, h *hasher) []rawjson.Rule {
	rules := e.paths(h)
	if isSecrets(gr) {
		if e.ExposeSecrets {
			return rules
		}
		rules = append(rules,
			rawjson.Rule{Path: "data[*]", Replace: h.replace},
			rawjson.Rule{Path: "stringData[*]", Replace: h.replace},
		)
	}
	for _, name := range appliedManifests() {
		rules = append(rules, rawjson.Rule{Path: `metadata.annotations["` + name + `"]`, Replace: h.replace})
	}
	return append(rules, rawjson.Rule{Path: "metadata.annotations[*]", Replace: h.replaceManifests})
}

// paths are the rules for the configured paths.
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

// isSecrets tells the one resource whose content is secret by definition.
func isSecrets(gr schema.GroupResource) bool {
	return gr.Group == "" && gr.Resource == "secrets"
}
