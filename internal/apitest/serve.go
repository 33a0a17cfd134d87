package apitest

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/fields"
)

// Fail answers with a Status.
func Fail(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(status(code, reason))
}

func status(code int, reason string) []byte {
	return marshal(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "apitest: " + reason,
	})
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.served.Add(1) // Serve itself runs meanwhile, so Close still waits
	defer s.served.Done()
	collection, namespace := split(r.URL.Path)
	query := queryOf(r)
	isWatch := query["watch"] == "true" || query["watch"] == "1"
	s.mu.Lock()
	if path, ok := s.aliases[collection]; ok {
		collection = path
	}
	s.requests = append(s.requests, Request{
		Resource: path.Base(collection), Namespace: namespace, Watch: isWatch, Query: query, Header: r.Header.Clone(),
	})
	intercept, defined := s.intercept, s.defined[collection]
	s.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	if defined {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(marshal(object{
			"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": map[string]any{"name": path.Base(collection)},
		}))
		return
	}
	query = queryOf(r) // intercept may have changed it
	if isWatch {
		s.watch(w, r, collection, namespace, query)
	} else {
		s.list(w, collection, namespace, query)
	}
}

func queryOf(r *http.Request) map[string]string {
	query := map[string]string{}
	for k, v := range r.URL.Query() {
		query[k] = v[0]
	}
	if accept := r.Header.Get("Accept"); strings.Contains(accept, "as=PartialObjectMetadata") && !strings.Contains(accept, ",") {
		query[metadataOnly] = "true"
	}
	return query
}

// metadataOnly is among the parameters of a request that takes metadata alone.
const metadataOnly = "as=PartialObjectMetadata"

// metadata is the object as it is served to those requests.
func (o object) metadata() object {
	return object{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": o["metadata"]}
}

// list answers with a page of the resource as it was at one version: the present one,
// an exact one that the request names, or that of the first page.
func (s *Server) list(w http.ResponseWriter, collection, namespace string, query map[string]string) {
	s.mu.Lock()
	r := s.resources[collection]
	if r == nil {
		s.mu.Unlock()
		Fail(w, http.StatusNotFound, "NotFound")
		return
	}
	version, after := s.version, ""
	if token := query["continue"]; token != "" {
		decoded, err := base64.StdEncoding.DecodeString(token)
		at, key, ok := strings.Cut(string(decoded), " ")
		if err != nil || !ok {
			s.mu.Unlock()
			Fail(w, http.StatusBadRequest, "BadRequest")
			return
		}
		version, _ = strconv.ParseUint(at, 10, 64)
		after = key
		if version == 0 { // the list continues at the present version
			version = s.version
		}
	} else if query["resourceVersionMatch"] == "Exact" {
		version, _ = strconv.ParseUint(query["resourceVersion"], 10, 64)
	}
	if code, reason := s.refusesLocked(r, version, query); code != 0 {
		s.mu.Unlock()
		if after == "" {
			Fail(w, code, reason)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write(marshal(map[string]any{
			"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
			"metadata": map[string]any{"continue": base64.StdEncoding.EncodeToString([]byte("0 " + after))},
		}))
		return
	}
	objects := r.at(version)
	limit, _ := strconv.Atoi(query["limit"])
	meta := map[string]any{"resourceVersion": strconv.FormatUint(version, 10)}
	items := []object{}
	named, byName := "", false
	if selector, err := fields.ParseSelector(query["fieldSelector"]); err == nil { // others select everything
		named, byName = selector.RequiresExactMatch("metadata.name")
	}
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		ns, name, _ := strings.Cut(key, "/")
		if key <= after || namespace != "" && ns != namespace || byName && name != named {
			continue
		}
		if limit > 0 && len(items) == limit {
			last := items[limit-1]["metadata"].(map[string]any)
			lastNS, _ := last["namespace"].(string)
			meta["continue"] = base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%d %s/%s", version, lastNS, last["name"]))
			break
		}
		item := maps.Clone(objects[key])
		if name == s.spoiled {
			meta := maps.Clone(item["metadata"].(map[string]any))
			meta["creationTimestamp"] = "yesterday"
			item["metadata"] = meta
		}
		if query[metadataOnly] != "" {
			items = append(items, item.metadata())
			continue
		}
		delete(item, "kind") // as built-in kinds have it
		delete(item, "apiVersion")
		items = append(items, item)
	}
	if path.Base(collection) == "namespaces" && query["fieldSelector"] == "metadata.name=kube-system" {
		items = []object{{"metadata": map[string]any{"name": "kube-system", "uid": s.uid, "resourceVersion": "4"}}}
	}
	apiVersion, kind := r.apiVersion, r.kind
	if query[metadataOnly] != "" {
		apiVersion, kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	head := fmt.Sprintf(`{"kind":"%sList","apiVersion":"%s","metadata":%s,"items":`, kind, apiVersion, marshal(meta))
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(append([]byte(head), marshal(items)...), '}'))
}

// refusesLocked is why the resource cannot be listed at a version; 0 if it can.
func (s *Server) refusesLocked(r *resource, version uint64, query map[string]string) (code int, reason string) {
	switch {
	case query["continue"] != "" && query["resourceVersion"]+query["resourceVersionMatch"] != "":
		return http.StatusBadRequest, "BadRequest" // kube-apiserver takes the version from the token alone
	case version < r.oldest:
		return http.StatusGone, "Expired"
	case version > s.version:
		return http.StatusGatewayTimeout, "Timeout" // "Too large resource version"
	}
	return 0, ""
}

// at is the resource's objects as they were at a version that the history reaches.
func (r *resource) at(version uint64) map[string]object {
	objects := maps.Clone(r.objects)
	for _, e := range slices.Backward(r.history) {
		if e.version <= version {
			break
		}
		switch {
		case e.raw != "":
		case e.previous == nil:
			delete(objects, e.key)
		default:
			objects[e.key] = e.previous
		}
	}
	return objects
}

// watch is an established watch. Its methods are called with Server.mu held.
type watch struct {
	path, namespace string
	metadata        bool
	lines           [][]byte
	more            chan struct{} // filled when lines has any
	ended           bool
	broken          bool
}

func (w *watch) raw(line string) {
	if w.ended {
		return
	}
	w.lines = append(w.lines, []byte(line))
	w.wake()
}

func (w *watch) send(e event) {
	if e.muted {
		return
	}
	if e.raw != "" {
		w.raw(`{"type":"` + e.typ + `","object":` + e.raw + `}`)
		return
	}
	if ns, _ := e.object["metadata"].(map[string]any)["namespace"].(string); w.namespace != "" && ns != w.namespace && e.typ != "BOOKMARK" {
		return
	}
	o := e.object
	if w.metadata && e.typ != "BOOKMARK" {
		o = o.metadata()
	}
	w.raw(string(marshal(map[string]any{"type": e.typ, "object": o})))
}

func (w *watch) end(broken bool) {
	w.ended, w.broken = true, broken
	w.wake()
}

func (w *watch) wake() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (s *Server) watch(rw http.ResponseWriter, req *http.Request, collection, namespace string, query map[string]string) {
	from, _ := strconv.ParseUint(query["resourceVersion"], 10, 64)
	w := &watch{path: collection, namespace: namespace, metadata: query[metadataOnly] != "", more: make(chan struct{}, 1)}
	s.mu.Lock()
	r := s.resources[collection]
	if r == nil {
		s.mu.Unlock()
		Fail(rw, http.StatusNotFound, "NotFound")
		return
	}
	if from < max(r.oldest, r.cached) && query["resourceVersion"] != "" {
		s.mu.Unlock()
		Fail(rw, http.StatusGone, "Expired")
		return
	}
	for _, e := range r.history {
		if e.version > from {
			w.send(e)
		}
	}
	s.watches[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watches, w)
		s.mu.Unlock()
	}()
	seconds, _ := strconv.Atoi(query["timeoutSeconds"])
	timeout := time.NewTimer(time.Duration(max(seconds, 1)) * time.Second)
	defer timeout.Stop()
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(http.StatusOK)
	flush := rw.(http.Flusher).Flush
	flush()
	for {
		s.mu.Lock()
		var lines [][]byte
		ended, broken := w.ended, w.broken
		if !s.stalled {
			lines, w.lines = w.lines, nil
		}
		s.mu.Unlock()
		for _, line := range lines {
			if _, err := rw.Write(append(line, '\n')); err != nil {
				return
			}
			flush()
		}
		switch {
		case broken:
			panic(http.ErrAbortHandler)
		case ended:
			return
		}
		select {
		case <-w.more:
		case <-timeout.C:
			return
		case <-req.Context().Done():
			return
		}
	}
}
