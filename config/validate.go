package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/watcherd/watcherd/config/internal/strict"
)

// Validate checks everything that needs nobody else. Parse and Load have done so;
// it is for a Config made by a program. An error is an *[Errors].
func (c *Config) Validate() error { return NewErrors(c.problems()...) }

// problems is every problem with the values, in no order.
func (c *Config) problems() []*Error {
	k := &checker{config: c}
	k.header()
	k.cluster()
	k.store()
	k.admin()
	k.audit()
	k.watches()
	k.sinks()
	k.routes()
	return k.list
}

// checker collects problems.
type checker struct {
	config *Config
	list   []*Error
}

func (k *checker) report(path, format string, args ...any) {
	k.list = append(k.list, k.config.ErrorAt(path, format, args...))
}

// require reports unless ok.
func (k *checker) require(ok bool, path, format string, args ...any) {
	if !ok {
		k.report(path, format, args...)
	}
}

// oneOf reports a value that is none of those allowed.
func (k *checker) oneOf(path, value string, allowed ...string) {
	if slices.Contains(allowed, value) {
		return
	}
	if near := strict.Nearest(value, allowed); near != "" {
		k.report(path, "%q is not known; did you mean %s?", value, near)
		return
	}
	k.report(path, "%q is not known; it is one of %s", value, strings.Join(allowed, ", "))
}

var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// names checks the names of a list of blocks and returns them.
func (k *checker) names(list string, n int, nameOf func(i int) string) []string {
	seen := make([]string, 0, n)
	for i := range n {
		path, value := strict.Index(list, i)+".name", nameOf(i)
		switch first := slices.Index(seen, value); {
		case value == "":
			k.report(path, "is required")
		case !name.MatchString(value):
			k.report(path, "%q must be lower-case letters, digits and dashes, at most 63, with a letter or digit at both ends", value)
		case first >= 0:
			k.report(path, "%q is the name of %s already", value, strict.Index(list, first))
		}
		seen = append(seen, value)
	}
	return seen
}

// references checks that each of refs is one of names, once.
func (k *checker) references(path, what string, refs, names []string) {
	for i, ref := range refs {
		at := strict.Index(path, i)
		switch {
		case slices.Contains(refs[:i], ref):
			k.report(at, "%q is listed twice", ref)
		case slices.Contains(names, ref):
		default:
			hint := ""
			if near := strict.Nearest(ref, names); near != "" {
				hint = fmt.Sprintf("; did you mean %s?", near)
			}
			k.report(at, "no %s is named %q%s", what, ref, hint)
		}
	}
}

func (k *checker) header() {
	switch c := k.config; {
	case c.APIVersion == "":
		k.report("apiVersion", "is required: apiVersion: %s", APIVersion)
	case c.APIVersion != APIVersion:
		k.report("apiVersion", "%q is not known to this watcherd; it reads %s", c.APIVersion, APIVersion)
	}
	switch c := k.config; {
	case c.Kind == "":
		k.report("kind", "is required: kind: %s", Kind)
	case c.Kind != Kind:
		k.report("kind", "%q is not a watcherd configuration; its kind is %s", c.Kind, Kind)
	}
}

func (k *checker) cluster() {
	c := k.config
	if n := c.Cluster.Name; strings.ContainsFunc(n, func(r rune) bool { return r <= ' ' || r >= 0x7f }) || len(n) > 253 {
		k.report("cluster.name", "must be at most 253 characters of ASCII without spaces, since it becomes part of event sources")
	}
	k.require(c.KubeAPI.QPS > 0, "kubeAPI.qps", "must be above 0")
	k.require(c.KubeAPI.Burst > 0, "kubeAPI.burst", "must be above 0")
}

func (k *checker) store() {
	s := k.config.Store
	k.require(s.Path != "", "store.path", "must not be empty")
	k.require(s.MaxBytes.Value() >= minStore, "store.maxBytes", "must be at least 16Mi")
	k.require(s.Retention.MaxAge >= 0, "store.retention.maxAge", "must not be negative; 0 keeps nothing that every sink has taken")
	k.require(s.Retention.MaxBytes.Value() <= s.MaxBytes.Value(), "store.retention.maxBytes", "must not be above store.maxBytes (%s), which holds the backlog too", s.MaxBytes.String())
}

// minStore is the least budget a store can work with.
const minStore = 16 << 20

func (k *checker) audit() {
	if a := k.config.Audit; a.Enabled {
		k.require(a.Interval > 0, "audit.interval", "must be above 0; to turn the audit off set audit.enabled: false")
	}
}
