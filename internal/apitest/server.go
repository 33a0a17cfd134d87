// Package apitest is an API server for tests that need one to misbehave: it lists
// and watches as kube-apiserver does, at versions that the test moves, and fails as
// a test asks for it. Its connections are pipes, so that it works in a synctest bubble,
// where a test of minutes takes no time.
package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// Server is one API server. Its methods are safe for concurrent use.
type Server struct {
	http     *http.Server
	listener *pipes
	served   sync.WaitGroup

	mu        sync.Mutex // guards what is below
	version   uint64
	uid       string
	resources map[string]*resource // by path without namespace: /api/v1/configmaps
	watches   map[*watch]struct{}
	aliases   map[string]string // other paths of resources
	unserved  map[string]bool   // resources that were taken away
	defined   map[string]bool   // resources that have a CustomResourceDefinition
	stalled   bool
	requests  []Request
	muted     bool
	intercept func(w http.ResponseWriter, r *http.Request) bool
	spoiled   string // the name of objects that lists spoil
}

// resource is a collection and its history.
type resource struct {
	apiVersion, kind string
	objects          map[string]object // by namespace/name
	history          []event
	oldest           uint64 // what was before this version is too old
	cached           uint64 // a watch from before this version is too old
}

type object map[string]any

type event struct {
	version uint64
	muted   bool // watches get no events
	typ     string
	object  object

	raw      string // in place of object
	key      string // of the object: namespace/name
	previous object // nil: it was added
}

// Request is one request that was made.
type Request struct {
	Resource  string // configmaps
	Namespace string
	Watch     bool
	Query     map[string]string
	Header    http.Header
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	s := Start()
	t.Cleanup(s.Close)
	return s
}

// Start starts a server at version 100. Its resources are those of Serve.
func Start() *Server {
	s := &Server{
		listener: newPipes(), version: 100, uid: "cluster-1",
		resources: map[string]*resource{}, watches: map[*watch]struct{}{},
	}
	s.Serve("/api/v1/namespaces", "v1", "Namespace")
	s.http = &http.Server{Handler: http.HandlerFunc(s.serve)}
	s.served.Go(func() { _ = s.http.Serve(s.listener) })
	return s
}

// Close ends the server and all its connections.
func (s *Server) Close() {
	_ = s.http.Close()
	s.served.Wait()
}

// Config is a client config for the server, without a limit on requests.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: "http://apitest", QPS: -1, Dial: s.listener.dial}
}

// Serve adds a resource: Serve("/apis/apps/v1/deployments", "apps/v1", "Deployment").
func (s *Server) Serve(path, apiVersion, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &resource{apiVersion: apiVersion, kind: kind, objects: map[string]object{}}
	if s.unserved[path] {
		r.oldest = s.version // of the time before there is no history
	}
	s.resources[path] = r
}

// ServeCustom is Serve for a custom resource: the server has its CustomResourceDefinition
// until Unserve. What only Serve adds in a group of its own is of an aggregated API.
func (s *Server) ServeCustom(path, apiVersion, kind string) {
	s.Serve(path, apiVersion, kind)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.defined == nil {
		s.defined = map[string]bool{}
	}
	s.defined[definitionOf(path)] = true
}

// definitionOf is the path of the definition of the resource at a path.
func definitionOf(resource string) string {
	group := strings.Split(resource, "/")[2] // /apis/example.com/v1/widgets
	return "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + path.Base(resource) + "." + group
}

// Alias serves the resource at path at another one too, as a custom resource is served
// in several versions. The objects keep their apiVersion.
func (s *Server) Alias(alias, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aliases == nil {
		s.aliases = map[string]string{}
	}
	s.aliases[alias] = path
}

// Stall stops or resumes what is sent on watches. Their connections stay up.
func (s *Server) Stall(stalled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stalled = stalled
	for w := range s.watches {
		w.wake()
	}
}

// Unserve takes a resource away with its definition and its objects and ends its watches.
func (s *Server) Unserve(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.resources, path)
	delete(s.defined, definitionOf(path))
	if s.unserved == nil {
		s.unserved = map[string]bool{}
	}
	s.unserved[path] = true
	for w := range s.watches {
		if w.path == path {
			w.end(false)
		}
	}
}

// Move serves a resource's objects and history at another path, as another version of
// it, and ends the watches of the former one.
func (s *Server) Move(from, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resources[to].objects, s.resources[to].history = s.resources[from].objects, s.resources[from].history
	delete(s.resources, from)
	for w := range s.watches {
		if w.path == from {
			w.end(false)
		}
	}
}

// Intercept has f answer requests before anything else does; false leaves a
// request to the server, with the query that f may have changed.
func (s *Server) Intercept(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// Spoil has lists show the objects of a name in an unreadable form; "" ends that.
func (s *Server) Spoil(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoiled = name
}

// SetUID makes the server another cluster.
func (s *Server) SetUID(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uid = uid
}

// Version is the present version.
func (s *Server) Version() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strconv.FormatUint(s.version, 10)
}

// Advance moves the version, as writes of other resources do.
func (s *Server) Advance(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version += n
}

// Put creates or changes an object. An empty namespace is none.
func (s *Server) Put(path, namespace, name string, fields map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(path, namespace, name, fields)
}

// Delete deletes objects, all at one version.
func (s *Server) Delete(path, namespace string, names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	r := s.resources[path]
	for _, name := range names {
		key := namespace + "/" + name
		old := r.objects[key]
		o := old.at(s.version)
		delete(r.objects, key)
		s.emitLocked(path, event{version: s.version, typ: "DELETED", object: o, key: key, previous: old})
	}
}

func (s *Server) putLocked(path, namespace, name string, fields map[string]any) {
	r := s.resources[path]
	s.version++
	key := namespace + "/" + name
	typ, uid := "ADDED", any(fmt.Sprintf("uid-%s-%d", name, s.version))
	old, ok := r.objects[key]
	if ok {
		typ, uid = "MODIFIED", old["metadata"].(map[string]any)["uid"]
	}
	meta := map[string]any{"name": name, "uid": uid, "creationTimestamp": "2026-01-02T03:04:05Z"}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	o := object{"apiVersion": r.apiVersion, "kind": r.kind, "metadata": meta}
	maps.Copy(o, fields)
	o = o.at(s.version)
	r.objects[key] = o
	s.emitLocked(path, event{version: s.version, typ: typ, object: o, key: key, previous: old})
}

// at is a copy of the object with another version.
func (o object) at(version uint64) object {
	c := maps.Clone(o)
	meta := maps.Clone(c["metadata"].(map[string]any))
	meta["resourceVersion"] = strconv.FormatUint(version, 10)
	c["metadata"] = meta
	return c
}

func (s *Server) emitLocked(path string, e event) {
	e.muted = s.muted
	s.resources[path].history = append(s.resources[path].history, e)
	for w := range s.watches {
		if w.path == path {
			w.send(e)
		}
	}
}

// Mute keeps changes from all watches, for good, until it is called with false.
func (s *Server) Mute(muted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.muted = muted
}

// Bookmark sends a bookmark of the present version to the watches of the resources at paths, to all watches without any.
func (s *Server) Bookmark(paths ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		if len(paths) > 0 && !slices.Contains(paths, w.path) {
			continue
		}
		w.send(event{version: s.version, typ: "BOOKMARK", object: object{
			"apiVersion": "v1", "kind": "Bookmark", "metadata": map[string]any{"resourceVersion": strconv.FormatUint(s.version, 10)},
		}})
	}
}

// Send sends a raw line to all watches of a resource.
func (s *Server) Send(path, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		if w.path == path {
			w.raw(line)
		}
	}
}

// Inject has the watches of a resource, those that run and those to come, send an
// event at the present version with an object of any JSON.
func (s *Server) Inject(path, typ, object string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emitLocked(path, event{version: s.version, typ: typ, raw: object})
}

// Compact deletes the history, for watches that begin from now on.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.resources {
		r.oldest, r.history = s.version, nil
	}
}

// Restart breaks the connections of all watches, and has later ones find no history in the
// cache of the server: a list at an earlier version is read from the storage.
func (s *Server) Restart() {
	s.mu.Lock()
	for _, r := range s.resources {
		r.cached = s.version
	}
	s.mu.Unlock()
	s.Cut()
}

// Cut breaks the connections of all watches.
func (s *Server) Cut() { s.endWatches(true) }

// EndWatches ends all watches properly, before their time.
func (s *Server) EndWatches() { s.endWatches(false) }

func (s *Server) endWatches(broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.end(broken)
	}
}

// Saved is a state to go back to.
type Saved struct {
	version   uint64
	resources map[string]resource
}

// Save remembers the present state.
func (s *Server) Save() Saved {
	s.mu.Lock()
	defer s.mu.Unlock()
	saved := Saved{s.version, map[string]resource{}}
	for path, r := range s.resources {
		c := *r
		c.objects, c.history = maps.Clone(r.objects), slices.Clone(r.history)
		saved.resources[path] = c
	}
	return saved
}

// Restore goes back to a state, as a restore of etcd from a backup does. The
// server has restarted, so there is no history. Watches that run are left alone.
func (s *Server) Restore(saved Saved) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = saved.version
	for path, r := range saved.resources {
		c := r
		c.objects, c.history, c.oldest = maps.Clone(r.objects), nil, 0
		s.resources[path] = &c
	}
}

// Requests returns the requests for a resource so far: lists or watches.
func (s *Server) Requests(resource string, watch bool) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Request
	for _, r := range s.requests {
		if r.Resource == resource && r.Watch == watch {
			list = append(list, r)
		}
	}
	return list
}

// Watches is how many watches of a resource are established.
func (s *Server) Watches(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for w := range s.watches {
		if w.path == path {
			n++
		}
	}
	return n
}

// pipes is a listener whose connections are pipes.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "apitest", Net: "pipe"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, &net.OpError{Op: "dial", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// split takes a path apart: /api/v1/namespaces/a/configmaps is /api/v1/configmaps
// in a.
func split(path string) (resource, namespace string) {
	before, after, ok := strings.Cut(path, "/namespaces/")
	if !ok {
		return path, ""
	}
	namespace, name, ok := strings.Cut(after, "/")
	if !ok {
		return path, ""
	}
	return before + "/" + name, namespace
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // made of strings and numbers by this package
	}
	return b
}
