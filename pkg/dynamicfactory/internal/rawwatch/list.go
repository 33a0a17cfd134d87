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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watcherd/watcherd/pkg/compact"
)

const (
	// pageSize is how many objects a page has. The server reads a consistent,
	// paged list from its storage; larger pages cost it memory, smaller ones time.
	pageSize = 500

	// pageTimeout is how long a page may take, headers and body.
	pageTimeout = 2 * time.Minute

	// pagedAttempts is how often a list is begun anew because the version of its
	// first page expired; after that one list is read without pages.
	pagedAttempts = 4

	// listHead is how much of a list is searched for its kind.
	listHead = 4 << 10
)

// objects is the list that the reflector gets.
type objects struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject returns a list of the same objects, which are never changed.
func (l *objects) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]runtime.Object(nil), l.Items...)
	return &c
}

// unreadable marks an object or a response that makes no sense.
type unreadable struct{ err error }

func (u *unreadable) Error() string { return u.err.Error() }
func (u *unreadable) Unwrap() error { return u.err }

// list reads the whole resource at one consistent version, page by page, making
// objects of a page while it comes in.
func (s *Source) list(ctx context.Context) (*objects, error) {
	for range pagedAttempts {
		list, err := s.paged(ctx, "", pageSize)
		if isExpired(err) {
			s.stats.contact(func(t *Stats) { t.Expired410++ })
			continue // the version of the first page is gone: a page from a newer one would not fit
		}
		return list, err
	}
	return s.paged(ctx, "", 0)
}

// paged reads a list at exactly a version, or at the present one if that is "".
func (s *Source) paged(ctx context.Context, version string, limit int) (*objects, error) {
	b := listBuilder{source: s, position: s.progress.next()}
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
		b.list.ResourceVersion = meta.ResourceVersion
		if meta.Continue == "" {
			break
		}
		query.Set("continue", meta.Continue)
		query.Del("resourceVersion") // the token has it; the server refuses both
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
func (s *Source) page(ctx context.Context, query url.Values, b *listBuilder) (compact.ListMeta, error) {
	release, err := s.cfg.Client.acquireList(ctx)
	if err != nil {
		return compact.ListMeta{}, err
	}
	defer release()
	accept := acceptObjects
	if s.cfg.MetadataOnly {
		accept = acceptMetadataList
	}
	b.typed = nil
	return s.cfg.Client.page(ctx, pageRequest{
		path: s.path, query: query, accept: accept, timeout: pageTimeout,
		head: func(head []byte) { b.apiVersion, b.kind = itemType(head) }, item: b.add,
	})
}

// listBuilder makes objects of the items of a list. It keeps one item back, since
// the last one of all carries the list's position.
type listBuilder struct {
	source   *Source
	position uint64
	list     objects
	held     []byte
	holding  bool

	apiVersion, kind string // what the items are, by the list's own kind; "" if it does not say
	typed            *bool  // whether the page's items say so themselves
	buf              []byte
}

func (b *listBuilder) add(raw []byte) error {
	if err := b.flush(0); err != nil {
		return err
	}
	b.held, b.holding = append(b.held[:0], raw...), true
	return nil
}

// flush makes an object of the item kept back.
func (b *listBuilder) flush(position uint64) error {
	if !b.holding {
		return nil
	}
	b.holding = false
	raw := b.held
	if b.typed == nil {
		_, has := compact.Lookup(raw, b.source.cfg.Client.kindPath)
		b.typed = &has
	}
	if !*b.typed && b.kind != "" {
		// Items of built-in kinds do not say what they are; watch events do.
		var err error
		if b.buf, err = b.source.cfg.Client.typer.AppendTyped(b.buf[:0], raw, b.apiVersion, b.kind); err != nil {
			return &unreadable{err}
		}
		raw = b.buf
	}
	o, err := b.source.object(raw, position)
	if err != nil {
		return err
	}
	b.list.Items = append(b.list.Items, o)
	return nil
}

// pageRequest asks for one page of a list.
type pageRequest struct {
	path    string
	query   url.Values
	accept  string
	timeout time.Duration
	head    func([]byte)           // shown the beginning of the response; may be nil
	item    func(raw []byte) error // called for each item
}

// page reads one page of a list. Its time begins when the rate limit lets it pass.
func (c *Client) page(ctx context.Context, q pageRequest) (compact.ListMeta, error) {
	if err := c.wait(ctx); err != nil {
		return compact.ListMeta{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, q.timeout, fmt.Errorf("a list took more than %v", q.timeout))
	defer cancel()
	resp, err := c.get(ctx, q.path, q.query, q.accept)
	if err != nil {
		return compact.ListMeta{}, err
	}
	defer resp.Body.Close()
	r := bufio.NewReaderSize(resp.Body, listHead)
	if q.head != nil {
		start, err := r.Peek(listHead)
		if err != nil && !errors.Is(err, io.EOF) {
			return compact.ListMeta{}, fmt.Errorf("read list: %w", err)
		}
		q.head(start)
	}
	meta, err := compact.ScanList(r, q.item)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return meta, cause
		}
		var syntax *compact.SyntaxError
		if errors.As(err, &syntax) || errors.Is(err, compact.ErrNoList) {
			return meta, &unreadable{err}
		}
		return meta, err
	}
	return meta, nil
}

// itemType reads from the beginning of a list what its items are: PodList means
// Pod. A server that puts the items first gets no answer, and needs none: it
// writes the items' types too.
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
