package rawwatch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/progress"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// pageSize is the number of objects of a page. The server reads a consistent list in
	// pages from its storage: larger pages cost memory, smaller ones time.
	pageSize = 500

	// pageTimeout bounds the time of a page, headers and body. wholeTimeout bounds a list
	// without pages, and pageTimeout its pauses.
	pageTimeout  = 2 * time.Minute
	wholeTimeout = time.Hour

	// pagedAttempts bounds the attempts of a list whose first page's version expires. The
	// list is then read without pages.
	pagedAttempts = 4
)

// objects is the list that the reflector gets.
type objects struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
	at    time.Time // nothing until then is later than the list's version; zero: it is not known
}

// DeepCopyObject returns a list of the same objects, which are immutable.
func (l *objects) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]runtime.Object(nil), l.Items...)
	return &c
}

// list reads the whole resource at one consistent version, page by page. It makes the
// objects of a page while it reads the page.
func (s *Source) list(ctx context.Context) (*objects, error) {
	for range pagedAttempts {
		list, err := s.paged(ctx, "", pageSize)
		if apiclient.IsExpired(err) {
			s.stats.contact(func(t *Counters) { t.Expired++ })
			continue // a page of a newer version would be inconsistent with the first one
		}
		return list, err
	}
	return s.paged(ctx, "", 0)
}

// paged reads a list at exactly a version; "": at the present one. limit is the size of a page;
// 0: there are none. If the list has several pages or none, paged leaves a watch for the
// following stream.
func (s *Source) paged(ctx context.Context, version string, limit int) (_ *objects, err error) {
	var watch *held
	defer func() {
		if err != nil {
			watch.close()
			watch = nil
		}
		s.keepHeld(watch)
	}()
	s.clearRelist()
	b := listBuilder{ctx: ctx, source: s, position: s.progress.Next(), list: objects{at: time.Now()}}
	query := s.query()
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	} else {
		b.began = func(version string) { watch, _ = s.hold(ctx, watch, version) } // fails for a watch that runs only
	}
	if version != "" {
		query.Set("resourceVersion", version)
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	}
	for pages := 1; ; pages++ {
		meta, err := s.page(ctx, query, &b)
		if err == nil {
			err = b.advances(pages)
		}
		if err != nil {
			return nil, err
		}
		if b.list.ResourceVersion == "" {
			b.list.ResourceVersion = meta.ResourceVersion // the watch has the changes that later pages already show
		}
		if meta.Continue == "" {
			break
		}
		if watch, err = s.hold(ctx, watch, b.list.ResourceVersion); err != nil {
			return nil, err
		}
		query.Set("continue", meta.Continue)
		query.Del("resourceVersion") // the token contains it; the server rejects both
		query.Del("resourceVersionMatch")
	}
	if b.list.ResourceVersion == "" {
		return nil, &apiclient.UnreadableError{Err: errors.New("the list has no resourceVersion")}
	}
	if err := b.flush(b.position); err != nil {
		return nil, err
	}
	b.unite()
	if err := s.ofThisCluster(ctx, &b.list); err != nil {
		return nil, err
	}
	return &b.list, nil
}

// ofThisCluster returns an error if a list is of a foreign cluster that took over after the probe before
// the list. A list with a known object is not.
func (s *Source) ofThisCluster(ctx context.Context, list *objects) error {
	known := func(item runtime.Object) bool {
		o, ok := item.(metav1.Object)
		if !ok || o.GetUID() == "" {
			return false
		}
		before, ok := s.knownObject(o.GetNamespace(), o.GetName()).(metav1.Object)
		return ok && before.GetUID() == o.GetUID()
	}
	if !s.cfg.Prober.Guarded() || slices.ContainsFunc(list.Items, known) {
		return nil
	}
	_, err := s.cfg.Prober.Version(ctx, time.Now())
	return err
}

func (s *Source) page(ctx context.Context, query url.Values, b *listBuilder) (rawjson.ListMeta, error) {
	q := apiclient.PageRequest{
		Path: s.path, Query: query, Accept: apiclient.AcceptObjects, Silence: pageTimeout, Timeout: pageTimeout,
		Head: func(head []byte) {
			var version string
			if b.apiVersion, b.kind, version = apiclient.ItemType(head); b.began != nil && version != "" {
				b.began(version)
			}
		}, Item: b.add,
	}
	if s.cfg.MetadataOnly {
		q.Accept = apiclient.AcceptMetadataList
	}
	if !query.Has("limit") {
		q.Timeout = wholeTimeout
	}
	b.begin()
	if !query.Has("continue") { // the first page: the caller begins again
		meta, err := s.cfg.Client.ListPage(ctx, q)
		if d := apiclient.RetryAfter(err); d > 0 && !apiclient.IsPermanent(err) {
			s.failed(ctx, "list", err)
			_ = apiclient.Sleep(ctx, d) // the error is the list's
		}
		return meta, err
	}
	failed := false
	meta, err := s.cfg.Client.RetryPage(ctx, q, func(attempt int, err error) error {
		if attempt > 1 { // a single failure is not reported
			s.failed(ctx, "list", err)
			failed = true
		}
		b.again()
		var status apierrors.APIStatus
		if !errors.As(err, &status) { // the next connection may lead elsewhere
			if _, err := s.cfg.Prober.Version(ctx, time.Now()); errors.Is(err, apiclient.ErrForeign) {
				return err
			}
		}
		if !apierrors.IsTooManyRequests(err) && s.isBefore(ctx, b.list.ResourceVersion) {
			return errRolledBack
		}
		return nil
	})
	if err == nil && failed {
		s.recovered(ctx, Listing)
	}
	return meta, err
}

// isBefore reports whether the resource has not reached the version of a list's earlier pages: a server that was set back has that version again
// one day, with other objects. One server of several may be behind for a moment.
func (s *Source) isBefore(ctx context.Context, version string) bool {
	for confirmed := false; ; confirmed = true {
		now, err := s.ownVersion(ctx)
		switch {
		case err != nil || !progress.Older(now, version):
			return false
		case confirmed:
			return true
		case apiclient.Sleep(ctx, confirmAfter) != nil:
			return false
		}
	}
}

// typer adds types to objects.
var typer = func() *rawjson.Editor {
	e, err := rawjson.NewEditor()
	if err != nil {
		panic(err) // it has no rules
	}
	return e
}()

// listBuilder makes objects of the items of a list. It delays each item until the next
// one, because the last item of all carries the list's position.
type listBuilder struct {
	ctx      context.Context //nolint:containedctx // the list's own
	source   *Source
	position uint64
	list     objects
	item     []byte // delayed
	hasItem  bool

	// The state at the start of the page, for another attempt.
	before     int
	itemBefore []byte
	hadItem    bool

	landmark [2]string // of an earlier page; see advances

	apiVersion, kind string               // of the items, by the list's kind; "" if unknown
	began            func(version string) // called with the version in the head of a list; may be nil
	typed            *bool                // the page's items contain their type
	buf              []byte
}

func (b *listBuilder) begin() {
	b.before, b.hadItem = len(b.list.Items), b.hasItem
	b.itemBefore = append(b.itemBefore[:0], b.item...)
	b.typed = nil
}

func (b *listBuilder) again() {
	clear(b.list.Items[b.before:])
	b.list.Items = b.list.Items[:b.before]
	b.item, b.hasItem = append(b.item[:0], b.itemBefore...), b.hadItem
	b.typed = nil
}

// advances returns an error if the pages repeat: a server that ignores the token, or whose
// tokens lead in a circle, has no last page. It compares each page with the last one whose
// number is a power of two.
func (b *listBuilder) advances(page int) error {
	if len(b.list.Items) <= b.before {
		return nil
	}
	o, ok := b.list.Items[b.before].(metav1.Object)
	if !ok {
		return nil
	}
	at := [2]string{o.GetNamespace(), o.GetName()}
	if at == b.landmark {
		return &apiclient.UnreadableError{Err: fmt.Errorf("page %d of the list repeats an earlier one", page)}
	}
	if page&(page-1) == 0 {
		b.landmark = at
	}
	return nil
}

func (b *listBuilder) add(raw []byte) error {
	if err := b.flush(0); err != nil {
		return err
	}
	b.item, b.hasItem = append(b.item[:0], raw...), true
	return nil
}

// flush makes an object of the delayed item.
func (b *listBuilder) flush(position uint64) error {
	if !b.hasItem {
		return nil
	}
	b.hasItem = false
	raw := b.item
	if b.typed == nil {
		_, has := rawjson.Lookup(raw, kindPath)
		b.typed = &has
	}
	if !*b.typed && b.kind != "" {
		// Items of built-in kinds lack their type, unlike watch events.
		var err error
		if b.buf, err = typer.AppendTyped(b.buf[:0], raw, b.apiVersion, b.kind); err != nil {
			return b.unmade(raw, position, &apiclient.UnreadableError{Err: err})
		}
		raw = b.buf
	}
	o, err := b.source.object(raw, position)
	if err != nil {
		return b.unmade(raw, position, err)
	}
	b.list.Items = append(b.list.Items, o)
	return nil
}

// unite leaves one state of each object, the newest, of a server that lists an object
// twice.
func (b *listBuilder) unite() {
	items := b.list.Items
	if inOrder(items) {
		return
	}
	at := make(map[[2]string]int, len(items))
	kept := make([]runtime.Object, 0, len(items))
	for _, item := range items {
		o, ok := item.(metav1.Object)
		if !ok {
			return
		}
		key := [2]string{o.GetNamespace(), o.GetName()}
		i, twice := at[key]
		if !twice {
			at[key] = len(kept)
			kept = append(kept, item)
		} else if !progress.Older(o.GetResourceVersion(), kept[i].(metav1.Object).GetResourceVersion()) {
			kept[i] = item
		}
	}
	n := len(items) - len(kept)
	if n == 0 {
		return
	}
	s, last := b.source, len(kept)-1
	for i := range last {
		kept[i] = s.at(kept[i], 0)
	}
	kept[last] = s.at(kept[last], b.position)
	b.list.Items = kept
	s.stats.contact(func(t *Counters) { t.Repeated += uint64(n) })
	s.log(b.ctx).Info("the server lists objects twice; their newest states count", "objects", n)
}

// inOrder reports whether items are in the order of NAMESPACE/NAME, each once, as API
// servers list them.
func inOrder(items []runtime.Object) bool {
	var namespace, name string
	for i, item := range items {
		o, ok := item.(metav1.Object)
		if !ok {
			return false
		}
		ns, n := o.GetNamespace(), o.GetName()
		if i > 0 && (ns == namespace && n <= name || ns != namespace && !precedes(namespace, ns)) {
			return false
		}
		namespace, name = ns, n
	}
	return true
}

// precedes reports whether the keys of one namespace come before those of another.
func precedes(a, b string) bool {
	n := min(len(a), len(b))
	switch {
	case a[:n] != b[:n]:
		return a < b
	case len(a) < len(b):
		return '/' < b[n]
	default:
		return a[n] < '/'
	}
}

// MetadataPage describes a page of ListMetadata.
type MetadataPage struct {
	ResourceVersion string // of the page
	Continue        string // the token of the next page; "" after the last
}

// ListMetadata calls visit with the metadata of each object of one page of the resource.
// An empty token requests the first page, and the token of a page the following one.
// Once the version of the earlier pages has expired, the page is the same part of the
// resource at the present version. The informer is not involved. The metadata is valid
// during the call. A page that breaks off is read again, after a call of again.
func (s *Source) ListMetadata(ctx context.Context, token string, again func(), visit func(*rawjson.Meta) error) (MetadataPage, error) {
	if err := s.enter(); err != nil {
		return MetadataPage{}, err
	}
	defer s.running.Done()
	query := s.query()
	query.Set("limit", strconv.Itoa(pageSize))
	q := apiclient.PageRequest{
		Path: s.path, Query: query, Accept: apiclient.AcceptAnyList, Silence: pageTimeout, Timeout: pageTimeout,
		Item: func(raw []byte) error {
			m, err := rawjson.Scan(raw)
			if err != nil {
				return &apiclient.UnreadableError{Err: err}
			}
			return visit(&m)
		},
	}
	if token != "" {
		query.Set("continue", token)
	}
	restart := func(int, error) error { again(); return nil }
	meta, err := s.cfg.Client.RetryPage(ctx, q, restart)
	if next := continuation(err); next != "" {
		query.Set("continue", next)
		meta, err = s.cfg.Client.RetryPage(ctx, q, restart)
	}
	if err != nil {
		return MetadataPage{}, fmt.Errorf("list of %s: %w", s.cfg.GVR.Resource, err)
	}
	if meta.ResourceVersion == "" {
		return MetadataPage{}, &apiclient.UnreadableError{Err: errors.New("the list has no resourceVersion")}
	}
	return MetadataPage{ResourceVersion: meta.ResourceVersion, Continue: meta.Continue}, nil
}

// continuation returns the token in the error of an expired one. It continues the list at
// the present version.
func continuation(err error) string {
	var status apierrors.APIStatus
	if !apiclient.IsExpired(err) || !errors.As(err, &status) {
		return ""
	}
	return status.Status().Continue
}

// GetMetadata calls visit with the metadata of one object, if it exists.
func (s *Source) GetMetadata(ctx context.Context, namespace, name string, visit func(*rawjson.Meta)) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.running.Done()
	query := s.query()
	selector := fields.OneTermEqualSelector("metadata.name", name).String() // a ClusterRole's may be a,b=c
	if s.cfg.FieldSelector != "" {
		selector += "," + s.cfg.FieldSelector
	}
	query.Set("fieldSelector", selector)
	_, err := s.cfg.Client.RetryPage(ctx, apiclient.PageRequest{
		Path: apiclient.ResourcePath(s.cfg.GVR, namespace), Query: query, Accept: apiclient.AcceptAnyList, Silence: apiclient.ProbeTimeout, Timeout: apiclient.ProbeTimeout,
		Item: func(raw []byte) error {
			m, err := rawjson.Scan(raw)
			if err == nil && string(m.Name) == name && string(m.Namespace) == namespace {
				visit(&m)
			}
			return err
		},
	}, func(int, error) error { return nil })
	if err != nil {
		return fmt.Errorf("list %s %s: %w", s.cfg.GVR.Resource, name, err)
	}
	return nil
}
