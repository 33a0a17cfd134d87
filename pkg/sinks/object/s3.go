package object

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/signer"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/aws"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
)

// bucketClient makes requests to one bucket, from any goroutine.
type bucketClient struct {
	root   *url.URL // of the bucket
	region string
	client *post.Client
	keys   *aws.Source
	sent   post.Sent

	mu     sync.Mutex // guards what follows
	cached aws.Keys
	until  time.Time // when cached is fetched again
}

const (
	maxAnswer = 256 << 20 // bytes of an object that is read back
	maxReply  = 8 << 20   // bytes of any other answer, of which a list of 1,000 keys is the longest
	maxKey    = 1 << 10   // bytes of an object's name, as of S3

	// Temporary credentials are fetched again when this much of their life is left.
	renewal = 5 * time.Minute

	metaPrefix = "X-Amz-Meta-Watcherd-"
)

// Errors of requests that found what they did not ask for.
var (
	errExists   = errors.New("an object of the name exists")
	errNotFound = errors.New("there is no object of the name")
)

// meta is the metadata of an object.
type meta struct {
	Last  uint64 // sequence of the last event
	Count int    // events
	IDs   string // hash of their ids, in the order of the lines
}

// put creates an object; it fails with errExists if there is one of the name, unless always is set.
func (b *bucketClient) put(ctx context.Context, key string, m meta, content []byte, always bool) error {
	sum := sha256.Sum256(content)
	header := http.Header{
		"Content-Type":          {"application/zstd"},
		"X-Amz-Checksum-Sha256": {base64.StdEncoding.EncodeToString(sum[:])},
		metaPrefix + "Last":     {strconv.FormatUint(m.Last, 10)},
		metaPrefix + "Count":    {strconv.Itoa(m.Count)},
		metaPrefix + "Ids":      {m.IDs},
	}
	if !always {
		header.Set("If-None-Match", "*")
	}
	a, err := b.client.Limit(maxReply).Send(ctx, http.MethodPut, b.url(key), header, content)
	switch {
	case err != nil:
		return err
	case a.Accepted() && a.Header.Get("ETag") == "": // every storage names what it has stored
		return a.Errorf("no ETag in the answer, as of a proxy in the place of the storage: %s", a.Excerpt(string(a.Body)))
	case a.Accepted():
		return nil
	case a.Status == http.StatusPreconditionFailed && !always:
		return errExists
	default:
		return b.refusal(a)
	}
}

// head returns the metadata of an object. Of an object without metadata of ours, last is the highest sequence.
func (b *bucketClient) head(ctx context.Context, key string) (m meta, err error) {
	a, err := b.find(ctx, http.MethodHead, key)
	if err != nil {
		return m, err
	}
	if m.Last, err = strconv.ParseUint(a.Header.Get(metaPrefix+"Last"), 10, 64); err != nil {
		m.Last = 1<<64 - 1
	}
	m.Count, _ = strconv.Atoi(a.Header.Get(metaPrefix + "Count")) // 0: unknown
	m.IDs = a.Header.Get(metaPrefix + "Ids")
	return m, nil
}

// get reads an object.
func (b *bucketClient) get(ctx context.Context, key string) ([]byte, error) {
	a, err := b.find(ctx, http.MethodGet, key)
	if err != nil {
		return nil, err
	}
	return a.Body, nil
}

// find asks for an object, which fails with errNotFound if there is none.
func (b *bucketClient) find(ctx context.Context, method, key string) (*post.Answer, error) {
	a, err := b.client.Send(ctx, method, b.url(key), http.Header{}, nil)
	switch {
	case err != nil:
		return nil, err
	case a.Status == http.StatusNotFound:
		return nil, errNotFound
	case !a.Accepted():
		return nil, b.refusal(a)
	}
	return a, nil
}

// list returns the next keys of a folder after a key, in order, and whether there are more.
func (b *bucketClient) list(ctx context.Context, folder, after string) (keys []string, more bool, err error) {
	to := *b.root
	to.RawQuery = url.Values{"list-type": {"2"}, "prefix": {folder}, "delimiter": {"/"}, "start-after": {after}}.Encode()
	a, err := b.client.Limit(maxReply).Send(ctx, http.MethodGet, &to, http.Header{}, nil)
	if err != nil {
		return nil, false, err
	}
	if !a.Accepted() {
		return nil, false, b.refusal(a)
	}
	var answer struct {
		XMLName   xml.Name `xml:"ListBucketResult"`
		Truncated bool     `xml:"IsTruncated"`
		Contents  []struct{ Key string }
	}
	if err := xml.Unmarshal(a.Body, &answer); err != nil {
		return nil, false, a.Errorf("the answer is not a list of objects")
	}
	for _, c := range answer.Contents {
		switch {
		case c.Key <= after:
			return nil, false, a.Errorf("the answer is not in order")
		case !strings.HasPrefix(c.Key, folder):
			return nil, false, a.Errorf("the answer has a key of another folder")
		case len(c.Key) > maxKey:
			return nil, false, a.Errorf("the answer has a key of more than %d bytes", maxKey)
		}
		keys, after = append(keys, c.Key), c.Key
	}
	if answer.Truncated && len(keys) == 0 {
		return nil, false, a.Errorf("the answer is empty and not complete")
	}
	return keys, answer.Truncated, nil
}

func (b *bucketClient) url(key string) *url.URL {
	u := *b.root
	u.Path += key
	u.RawPath = s3utils.EncodePath(u.Path)
	return &u
}

// sign adds the signature, which covers the body, and returns the secrets.
func (b *bucketClient) sign(req *http.Request, body []byte) (hidden []string, err error) {
	k, err := b.credentials(req.Context())
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	req.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	signed := signer.SignV4(*req, k.ID, k.Secret, k.Session, b.region)
	req.Header, req.URL.RawQuery = signed.Header, signed.URL.RawQuery
	authorization := signed.Header.Get("Authorization")
	_, signature, _ := bytes.Cut([]byte(authorization), []byte("Signature="))
	return append(b.sent.Note(k.Secret, k.Session), authorization, string(signature)), nil
}

// credentials returns the current ones. Static ones are read at each call.
func (b *bucketClient) credentials(ctx context.Context) (aws.Keys, error) {
	b.mu.Lock()
	cached, fresh := b.cached, time.Now().Before(b.until)
	b.mu.Unlock()
	if fresh {
		return cached, nil
	}
	k, err := b.keys.Get(ctx)
	if err != nil || k.Expires.IsZero() {
		return k, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cached, b.until = k, k.Expires.Add(-renewal)
	return k, nil
}

// refusal is the error of an answer that is not a success. S3 answers 400 for what may pass as for what cannot, and
// never for the fault of an event.
func (b *bucketClient) refusal(a *post.Answer) error {
	var body struct {
		Code, Message string
	}
	if err := xml.Unmarshal(a.Body, &body); err != nil {
		body.Message = string(a.Body)
	}
	if body.Code == "ExpiredToken" {
		b.mu.Lock()
		b.until = time.Time{}
		b.mu.Unlock()
	}
	reason := a.Excerpt(body.Code + " " + body.Message)
	switch {
	case a.Status/100 == 3:
		err := fmt.Errorf("%s: the bucket may be in another region, set s3.region", reason)
		if region := a.Header.Get("X-Amz-Bucket-Region"); regionName.MatchString(region) && region != "" {
			err = fmt.Errorf("the bucket is in region %s, set s3.region", region)
		}
		return sinks.Pause(a.Errorf("%w", err))
	case a.Status == http.StatusConflict:
		return a.Errorf("%s", reason) // another request for the name is not complete
	case a.Status == http.StatusBadRequest || a.Status == http.StatusUnprocessableEntity || a.Status == http.StatusRequestEntityTooLarge:
		switch body.Code {
		case "BadDigest", "ExpiredToken", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch":
			return a.Errorf("%s", reason)
		}
		return sinks.Pause(a.Errorf("%s", reason))
	case a.Status == http.StatusNotImplemented:
		return sinks.Pause(a.Errorf("%s; storage without conditional writes needs conditionalWrites: false", reason))
	default:
		return a.Refusal(a.Status, reason)
	}
}
