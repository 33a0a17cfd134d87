package rawwatch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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

	// pageAttempts and pagePatience bound the attempts of a page and their time: the server
	// keeps the version of a list for about five minutes.
	pageAttempts = 10
	pagePatience = 5 * time.Minute

	// maxRetryAfter bounds the wait between attempts that a server may request.
	maxRetryAfter = time.Minute

	// pagedAttempts bounds the attempts of a list whose first page's version expires. The
	// list is then read without pages.
	pagedAttempts = 4

	// listHead is the size of the part of a list that is searched for its kind.
	listHead = 4 << 10
)

// objects is the list that the reflector gets.
type objects struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject returns a list of the same objects, which are immutable.
func (l *objects) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]runtime.Object(nil), l.Items...)
	return &c
}

// unreadable marks an object or a response that cannot be parsed.
type unreadable struct{ err error }

func (u *unreadable) Error() string { return u.err.Error() }
func (u *unreadable) Unwrap() error { return u.err }

// list reads the whole resource at one consistent version, page by page. It makes the
// objects of a page while it reads the page.
func (s *Source) list(ctx context.Context) (*objects, error) {
	for range pagedAttempts {
		list, err := s.paged(ctx, "", pageSize)
		if isExpired(err) {
			s.stats.contact(func(t *Counters) { t.Expired++ })
			continue // a page of a newer version would be inconsistent with the first one
		}
		return list, err
	}
	return s.paged(ctx, "", 0)
}

// paged reads a list at exactly a version; "": at the present one. If the list has several
// pages, paged leaves a watch for the following stream.
func (s *Source) paged(ctx context.Context, version string, limit int) (_ *objects, err error) {
	var watch *held
	defer func() {
		if err != nil {
			watch.close()
			watch = nil
		}
		s.keepHeld(watch)
	}()
	b := listBuilder{ctx: ctx, source: s, position: s.progress.Next()}
	query := s.query()
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	if version != "" {
		query.Set("resourceVersion", version)
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	}
	for {
		meta, err := s.page(ctx, query, &b)
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
		return nil, &unreadable{errors.New("the list has no resourceVersion")}
	}
	if err := b.flush(b.position); err != nil {
		return nil, err
	}
	return &b.list, nil
}

// page reads one page into b.
func (s *Source) page(ctx context.Context, query url.Values, b *listBuilder) (rawjson.ListMeta, error) {
	q := pageRequest{
		path: s.path, query: query, accept: acceptObjects, silence: pageTimeout, timeout: pageTimeout,
		head: func(head []byte) { b.apiVersion, b.kind = itemType(head) }, item: b.add,
	}
	if s.cfg.MetadataOnly {
		q.accept = acceptMetadataList
	}
	if !query.Has("limit") {
		q.timeout = wholeTimeout
	}
	b.begin()
	if !query.Has("continue") { // the first page: the caller begins again
		meta, err := s.cfg.Client.listPage(ctx, q)
		if d := min(retryAfter(err), maxRetryAfter); d > 0 && !permanent(err) {
			s.failed(ctx, "list", err)
			_ = sleep(ctx, d) // the error is the list's
		}
		return meta, err
	}
	failed := false
	meta, err := s.cfg.Client.retried(ctx, q, func(attempt int, err error) error {
		if attempt > 1 { // a single failure is not reported
			s.failed(ctx, "list", err)
			failed = true
		}
		b.again()
		var status apierrors.APIStatus
		if !errors.As(err, &status) { // the next connection may lead elsewhere
			if _, err := s.cfg.Prober.version(ctx, time.Now()); errors.Is(err, ErrForeign) {
				return err
			}
		}
		return nil
	})
	if err == nil && failed {
		s.stats.healthy(Listing)
	}
	return meta, err
}

// retried reads one page. It retries a page that the server rejects for the moment or that
// breaks off, after again has discarded the objects of the attempt. An error of again ends
// the retries.
func (c *Client) retried(ctx context.Context, q pageRequest, again func(attempt int, err error) error) (rawjson.ListMeta, error) {
	began := time.Now()
	var wait backoff
	for attempt := 1; ; attempt++ {
		meta, err := c.listPage(ctx, q)
		if err == nil || permanent(err) || ctx.Err() != nil || attempt == pageAttempts || time.Since(began) > pagePatience {
			return meta, err
		}
		if wait.wait(ctx, min(retryAfter(err), maxRetryAfter), backoffMax) != nil {
			return meta, err
		}
		if err := again(attempt, err); err != nil {
			return meta, err
		}
	}
}

// listPage reads one page within the limit of concurrent lists.
func (c *Client) listPage(ctx context.Context, q pageRequest) (rawjson.ListMeta, error) {
	release, err := c.acquireList(ctx)
	if err != nil {
		return rawjson.ListMeta{}, err
	}
	defer release()
	return c.page(ctx, q)
}

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

	apiVersion, kind string // of the items, by the list's kind; "" if unknown
	typed            *bool  // the page's items contain their type
	buf              []byte
}

// begin begins a page, and again restarts it.
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
		_, has := rawjson.Lookup(raw, b.source.cfg.Client.kindPath)
		b.typed = &has
	}
	if !*b.typed && b.kind != "" {
		// Items of built-in kinds lack their type, unlike watch events.
		var err error
		if b.buf, err = b.source.cfg.Client.typer.AppendTyped(b.buf[:0], raw, b.apiVersion, b.kind); err != nil {
			return b.unmade(raw, position, &unreadable{err})
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

// itemError is an error of pageRequest.item rather than of the server.
type itemError struct{ err error }

func (e *itemError) Error() string { return e.err.Error() }
func (e *itemError) Unwrap() error { return e.err }

// pageRequest requests one page of a list.
type pageRequest struct {
	path    string
	query   url.Values
	accept  string
	silence time.Duration // bounds the pauses of the response; 0: no bound of its own
	timeout time.Duration
	head    func([]byte)           // called with the beginning of the response; may be nil
	item    func(raw []byte) error // called for each item
}

// page reads one page of a list. Its timeout begins after the rate limit.
func (c *Client) page(ctx context.Context, q pageRequest) (rawjson.ListMeta, error) {
	if err := c.wait(ctx); err != nil {
		return rawjson.ListMeta{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, fmt.Errorf("list took more than %v", q.timeout))
	defer cancel()
	ctx, alive, done := lively(ctx, q.silence)
	defer done()
	resp, err := c.get(ctx, q.path, q.query, q.accept)
	if err != nil {
		return rawjson.ListMeta{}, err
	}
	defer resp.Body.Close()
	r := bufio.NewReaderSize(&reporter{resp.Body, alive}, listHead)
	if q.head != nil {
		start, err := r.Peek(listHead)
		if err != nil && !errors.Is(err, io.EOF) {
			return rawjson.ListMeta{}, fmt.Errorf("read list: %w", err)
		}
		q.head(start)
	}
	meta, err := rawjson.ScanList(r, func(raw []byte) error {
		if err := q.item(raw); err != nil {
			return &itemError{err}
		}
		return nil
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return meta, cause
		}
		var syntax *rawjson.SyntaxError
		if errors.As(err, &syntax) || errors.Is(err, rawjson.ErrNoList) {
			return meta, &unreadable{err}
		}
		return meta, err
	}
	return meta, nil
}

// lively returns a context that ends without a call of alive for a time; 0: no bound. done
// ends it.
func lively(ctx context.Context, silence time.Duration) (_ context.Context, alive, done func()) {
	if silence == 0 {
		return ctx, func() {}, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(silence, func() { cancel(fmt.Errorf("list stalled for %v", silence)) })
	return ctx, func() { timer.Reset(silence) }, func() { timer.Stop(); cancel(nil) }
}

// reporter calls alive after each read with data.
type reporter struct {
	io.Reader
	alive func()
}

func (r *reporter) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.alive()
	}
	return n, err
}

// itemType returns the type of a list's items by the beginning of the list: Pod for a
// PodList. It returns "" for a server that sends the items first, which also sends their
// types.
func itemType(head []byte) (apiVersion, kind string) {
	d := json.NewDecoder(bytes.NewReader(head))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", ""
	}
	for d.More() {
		key, err := d.Token()
		if err != nil || key == "items" {
			break
		}
		var value any
		if err := d.Decode(&value); err != nil {
			break
		}
		switch text, _ := value.(string); key {
		case "kind":
			kind = text
		case "apiVersion":
			apiVersion = text
		}
	}
	if n := len(kind) - len("List"); n > 0 && kind[n:] == "List" {
		return apiVersion, kind[:n]
	}
	return "", ""
}
