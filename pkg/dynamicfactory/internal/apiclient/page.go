package apiclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

const (
	// pageAttempts and pagePatience bound the attempts of a page and their time: the server
	// keeps the version of a list for about five minutes.
	pageAttempts = 10
	pagePatience = 5 * time.Minute

	// listHead is the size of the part of a list that is searched for its kind.
	listHead = 4 << 10

	// placePatience is the time without a response after which a page gives up its place
	// among the concurrent lists until the response begins.
	placePatience = 3 * time.Second
)

// UnreadableError marks an object or a response that cannot be parsed.
type UnreadableError struct{ Err error }

func (u *UnreadableError) Error() string { return u.Err.Error() }
func (u *UnreadableError) Unwrap() error { return u.Err }

// RetryPage is ListPage with retries of a page that the server rejects for
// the moment or that breaks off, after again has discarded the objects of the attempt. An
// error of again ends the retries.
func (c *Client) RetryPage(ctx context.Context, q PageRequest, again func(attempt int, err error) error) (rawjson.ListMeta, error) {
	began := time.Now()
	var wait Backoff
	for attempt := 1; ; attempt++ {
		meta, err := c.ListPage(ctx, q)
		if err == nil || IsPermanent(err) || ctx.Err() != nil || attempt == pageAttempts || time.Since(began) > pagePatience {
			return meta, err
		}
		if wait.Wait(ctx, RetryAfter(err), MaxBackoff) != nil {
			return meta, err
		}
		if err := again(attempt, err); err != nil {
			return meta, err
		}
	}
}

// ListPage reads one page within the limit of concurrent lists. A page that is not answered,
// as by an API whose webhook or backend hangs, does not hold up the others.
func (c *Client) ListPage(ctx context.Context, q PageRequest) (rawjson.ListMeta, error) {
	if err := c.acquireList(ctx); err != nil {
		return rawjson.ListMeta{}, err
	}
	if err := c.wait(ctx); err != nil {
		c.releaseList()
		return rawjson.ListMeta{}, err
	}
	waiting := time.AfterFunc(placePatience, c.releaseList)
	reading := false
	defer func() {
		if reading || waiting.Stop() {
			c.releaseList()
		}
	}()
	return c.page(ctx, q, func(ctx context.Context) error {
		if !waiting.Stop() {
			if err := c.acquireList(ctx); err != nil {
				return err
			}
		}
		reading = true
		return nil
	})
}

// itemError is an error of PageRequest.Item rather than of the server.
type itemError struct{ err error }

func (e *itemError) Error() string { return e.err.Error() }
func (e *itemError) Unwrap() error { return e.err }

// PageRequest requests one page of a list.
type PageRequest struct {
	Path    string
	Query   url.Values
	Accept  string
	Silence time.Duration // bounds the pauses of the response; 0: no bound of its own
	Timeout time.Duration
	Head    func([]byte)           // called with the beginning of the response; may be nil
	Item    func(raw []byte) error // called for each item
}

// Page reads one page of a list. Its timeout begins after the rate limit.
func (c *Client) Page(ctx context.Context, q PageRequest) (rawjson.ListMeta, error) {
	if err := c.wait(ctx); err != nil {
		return rawjson.ListMeta{}, err
	}
	return c.page(ctx, q, func(context.Context) error { return nil })
}

// page is Page without the rate limit. It calls answered before it reads the response.
func (c *Client) page(ctx context.Context, q PageRequest, answered func(context.Context) error) (rawjson.ListMeta, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, q.Timeout, fmt.Errorf("list took more than %v", q.Timeout))
	defer cancel()
	ctx, alive, done := lively(ctx, q.Silence)
	defer done()
	resp, err := c.Get(ctx, q.Path, q.Query, q.Accept)
	if err != nil {
		return rawjson.ListMeta{}, err
	}
	defer resp.Body.Close()
	if err := answered(ctx); err != nil {
		return rawjson.ListMeta{}, err
	}
	r := bufio.NewReaderSize(&reporter{resp.Body, alive}, listHead)
	if q.Head != nil {
		start, err := r.Peek(listHead)
		if err != nil && !errors.Is(err, io.EOF) {
			return rawjson.ListMeta{}, fmt.Errorf("read list: %w", err)
		}
		q.Head(start)
	}
	meta, err := rawjson.ScanList(r, func(raw []byte) error {
		if err := q.Item(raw); err != nil {
			return &itemError{err}
		}
		return nil
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return meta, cause
		}
		var syntax *rawjson.SyntaxError
		if errors.As(err, &syntax) || errors.Is(err, rawjson.ErrNoList) || errors.Is(err, rawjson.ErrLongItem) {
			return meta, &UnreadableError{Err: err}
		}
		return meta, err
	}
	if meta.Continue != "" && meta.Continue == q.Query.Get("continue") {
		return meta, &UnreadableError{Err: errors.New("a page of the list continues with itself")}
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

// ItemType returns the type of a list's items by the beginning of the list, Pod for a
// PodList, and the version of the list. They are "" for a server that sends the items first,
// which also sends their types.
func ItemType(head []byte) (apiVersion, kind, resourceVersion string) {
	d := json.NewDecoder(bytes.NewReader(head))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return "", "", ""
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
		case "metadata":
			metadata, _ := value.(map[string]any)
			resourceVersion, _ = metadata["resourceVersion"].(string)
		}
	}
	if n := len(kind) - len("List"); n > 0 && kind[n:] == "List" {
		return apiVersion, kind[:n], resourceVersion
	}
	return "", "", resourceVersion
}

// StatusError returns the error in the object of an ERROR event.
func StatusError(raw []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(raw, &status); err != nil || status.Kind != "Status" {
		return &UnreadableError{Err: fmt.Errorf("error event without a status: %.200s", raw)}
	}
	status.Message = short(status.Message)
	return apierrors.FromObject(runtime.Object(&status))
}
