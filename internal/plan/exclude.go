package plan

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/route"
)

// excludes checks what a watch leaves out.
func (k *compiler) excludes(path string, c *config.Watch, w *Watch) {
	path += ".excludeResources"
	w.ExcludeResources = k.resources(path, c.ExcludeResources)
	for i, text := range w.ExcludeResources {
		excluded, err := route.ParseResource(text)
		if err != nil {
			continue // reported
		}
		for _, own := range w.Resources {
			named, err := route.ParseResource(own)
			switch {
			case err != nil:
			case named.Wildcard() && own == text, excluded.Wildcard() && excluded.Bare():
				k.fault(item(path, i), "%s excludes all of %s, which the watch names", text, own)
			case !named.Wildcard() && excludesNamed(excluded, named):
				k.fault(item(path, i), "the watch names %s itself; excludeResources is for what its wildcards match", own)
			}
		}
	}
}

// excludesNamed reports whether a pattern may exclude what another one names
// without a wildcard.
func excludesNamed(excluded, named route.ResourcePattern) bool {
	if _, ok := excluded.Shared(named); ok {
		return true
	}
	gr, _ := named.Shared(named)
	other, _ := excluded.Shared(excluded)
	return excluded.Bare() != named.Bare() && gr.Resource == other.Resource
}

// Excludes reports whether the watch leaves out gr. means gives what a name without
// a wildcard stands for where the cluster serves it, such as a short name; it may be
// nil.
func (w *Watch) Excludes(gr schema.GroupResource, means func(name string) (schema.GroupResource, bool)) bool {
	for _, text := range w.ExcludeResources {
		p, err := route.ParseResource(text)
		if err != nil {
			continue // Compile has refused it
		}
		if p.Names(gr) {
			return true
		}
		if means == nil || p.Wildcard() {
			continue
		}
		if found, ok := means(text); ok && found == gr {
			return true
		}
	}
	return false
}
