package plan

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/selector"
)

// excludes checks what a watch leaves out.
func (k *compiler) excludes(path string, c *config.Watch, w *Watch) {
	path += ".excludeResources"
	w.ExcludeResources = k.resources(path, c.ExcludeResources)
	for i, text := range w.ExcludeResources {
		excluded, err := selector.ParseResource(text)
		if err != nil {
			continue // reported
		}
		for _, own := range w.Resources {
			named, err := selector.ParseResource(own)
			switch {
			case err != nil:
			case named.Wildcard() && excludesAll(excluded, named):
				k.fault(item(path, i), "%s excludes all of %s, which the watch names", text, own)
			case !named.Wildcard() && excludesNamed(excluded, named):
				k.fault(item(path, i), "the watch names %s itself; excludeResources is for what its wildcards match", own)
			}
		}
	}
}

// excludesAll reports whether a pattern excludes everything that a wildcard names.
func excludesAll(excluded, wildcard selector.Resource) bool {
	_, ok := excluded.Shared(wildcard)
	return ok && excluded.Wildcard() && (excluded.Bare() || !wildcard.Bare())
}

// excludesNamed reports whether a pattern may exclude what another one names
// without a wildcard.
func excludesNamed(excluded, named selector.Resource) bool {
	if _, ok := excluded.Shared(named); ok {
		return true
	}
	gr, _ := named.Shared(named)
	other, _ := excluded.Shared(excluded)
	return excluded.Bare() != named.Bare() && gr.Resource == other.Resource
}

// Excluder returns a function that reports whether the watch leaves out a resource.
// means gives what a name without a wildcard stands for where the cluster serves it,
// such as a short name.
func (w *Watch) Excluder(means func(name string) (schema.GroupResource, bool)) func(schema.GroupResource) bool {
	var patterns []selector.Resource
	var resolved []schema.GroupResource
	for _, text := range w.ExcludeResources {
		p, err := selector.ParseResource(text)
		if err != nil {
			continue // Compile has refused it
		}
		patterns = append(patterns, p)
		if p.Wildcard() {
			continue
		}
		if gr, ok := means(text); ok {
			resolved = append(resolved, gr)
		}
	}
	return func(gr schema.GroupResource) bool {
		return slices.Contains(resolved, gr) ||
			slices.ContainsFunc(patterns, func(p selector.Resource) bool { return p.Names(gr) })
	}
}
