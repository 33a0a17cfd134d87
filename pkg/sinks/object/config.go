package object

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/internal/aws"
	"github.com/watcherd/watcherd/pkg/sinks/internal/post"
	"github.com/watcherd/watcherd/pkg/sinks/internal/template"
)

// Config is the `object` block.
type Config struct {
	// S3 is storage that speaks the API of S3.
	S3 S3 `json:"s3"`

	// Path of the folder that an event's object is in. Tokens: {cluster} {group} {version} {resource} {namespace}
	// {date} (day of the event, UTC), which is required. Each batch makes one object in each folder that it has events of.
	Path string `json:"path,omitempty"`

	// ConditionalWrites creates an object only if none of its name exists, on which delivery exactly once rests. Storage
	// that ignores the condition is detected and pauses the sink. With false each object has a name of its own, and
	// delivery is at least once.
	ConditionalWrites bool `json:"conditionalWrites,omitempty" jsonschema:"default=true"`

	// Timeout of one request, from dialling to the end of the answer.
	Timeout sinks.Duration `json:"timeout,omitempty" jsonschema:"type=string"`
}

// S3 is the `s3` block.
type S3 struct {
	// Bucket that exists.
	Bucket string `json:"bucket"`

	// Region of the bucket. Left out, AWS_REGION of the environment, else us-east-1.
	Region string `json:"region,omitempty"`

	// Endpoint is the URL of the API, http or https. Left out, that of AWS in the region.
	Endpoint string `json:"endpoint,omitempty"`

	// PathStyle has the bucket in the path of URLs rather than in the name of the host. Left out, it is so with an
	// endpoint, and for a bucket whose name has a dot.
	PathStyle *bool `json:"pathStyle,omitempty"`

	// AccessKey is the id of a static key. Left out, the environment gives the credentials: the variables
	// AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a role of the service account (IRSA), or EKS Pod Identity.
	AccessKey string `json:"accessKey,omitempty"`

	// SecretKey of AccessKey.
	SecretKey *sinks.Secret `json:"secretKey,omitempty"`

	// SessionToken of AccessKey, if it is a temporary one.
	SessionToken *sinks.Secret `json:"sessionToken,omitempty"`

	// TLS names the files to trust and to present.
	TLS sinks.TLS `json:"tls,omitzero"`
}

var _ sinks.Config = (*Config)(nil)

const (
	defaultPath    = "watcherd/{cluster}/{resource}/dt={date}/"
	defaultTimeout = sinks.Duration(time.Minute)
	defaultRegion  = "us-east-1"
)

// NewConfig returns the block with its defaults.
func NewConfig() *Config {
	return &Config{Path: defaultPath, ConditionalWrites: true, Timeout: defaultTimeout}
}

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// Validate checks the block.
func (c *Config) Validate() error {
	_, named := c.folders()
	errs := []error{named, c.keys().Validate(), c.S3.TLS.Validate("s3.tls")}
	bad := func(path, msg string) { errs = append(errs, &sinks.FieldError{Path: path, Msg: msg}) }
	switch {
	case c.S3.Bucket == "":
		bad("s3.bucket", "required")
	case !bucketName.MatchString(c.S3.Bucket) || strings.Contains(c.S3.Bucket, ".."):
		bad("s3.bucket", "must be 3 to 63 characters of a-z, 0-9, dot and hyphen")
	}
	if !regionName.MatchString(c.S3.Region) {
		bad("s3.region", "must be letters, digits and hyphens")
	}
	if c.S3.Endpoint != "" {
		_, err := post.Address("s3.endpoint", c.S3.Endpoint, "")
		errs = append(errs, err)
		if c.S3.SessionToken != nil && sinks.PlainText(c.S3.Endpoint) {
			bad("s3.endpoint", "sends sessionToken unencrypted, as it is http:// and beyond loopback: use https://")
		}
	}
	if c.Timeout <= 0 {
		bad("timeout", "must be above 0")
	}
	return errors.Join(errs...)
}

var regionName = regexp.MustCompile(`^[a-zA-Z0-9-]{0,64}$`)

// segment is what a value in a path may hold; other characters become %XX.
var segment = template.NewCharset(func(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.:", c) >= 0
})

// appendValue appends a value so that it is a part of a path, and neither . nor .. is one.
func appendValue(dst []byte, value string) []byte {
	if value[0] == '.' {
		dst, value = append(dst, "%2E"...), value[1:]
	}
	return segment.Percent(dst, value)
}

// maxPath is the longest text of a folder in bytes. A key has 1,024 at most.
const maxPath = 512

// folders is the text of folders.
func (c *Config) folders() (template.Template, error) {
	bad := func(msg string) error { return &sinks.FieldError{Path: "path", Msg: msg} }
	t, err := template.Parse(c.Path, template.Cluster, template.Group, template.Version, template.Resource, template.Namespace, template.Date)
	if err != nil {
		return nil, bad(err.Error())
	}
	sample := t.Sample("x")
	switch {
	case c.Path == "":
		return nil, bad("required, for example " + defaultPath)
	case !strings.Contains(c.Path, "{"+template.Date+"}"):
		return nil, bad("must hold {date}: a folder of all days is slow to list and to query")
	case !strings.HasSuffix(sample, "/"):
		return nil, bad("must end with a slash")
	case strings.HasPrefix(sample, "/") || strings.Contains(sample, "//") || strings.Contains("/"+sample, "/./") || strings.Contains("/"+sample, "/../"):
		return nil, bad("must not have empty, . or .. parts")
	case strings.ContainsFunc(sample, func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune("\\<>\"'&?#", r) }):
		return nil, bad("must be of characters that every storage takes: letters, digits and - _ . = : ! , @ + ( ) * $ ~ space")
	case len(c.Path) > maxPath:
		return nil, bad("is too long")
	}
	return t, nil
}

// keys is where the credentials are.
func (c *Config) keys() *aws.Source {
	return &aws.Source{
		AccessKey: c.S3.AccessKey, SecretKey: c.S3.SecretKey, SessionToken: c.S3.SessionToken, Path: "s3.", Timeout: c.Timeout.Std(),
	}
}

// Defaults are the delivery settings: an object a minute and folder, or earlier if there is much.
func (c *Config) Defaults() sinks.Delivery {
	return sinks.Delivery{MaxEvents: 10_000, MaxBytes: 32 << 20, MaxWait: time.Minute, Concurrency: 1}
}

// Sequential implements sinks.Sequential: what is read back goes by the order of the objects.
func (*Config) Sequential() {}

// Open makes the sink. Secrets and files are first read by Write, so one that is missing pauses this sink and no other.
func (c *Config) Open(_ context.Context, o sinks.Options) (sinks.Sink, error) {
	if err := o.Format.RequireText(); err != nil {
		return nil, err
	}
	t, err := c.folders()
	if err != nil {
		return nil, err
	}
	region := cmp.Or(c.S3.Region, aws.Region(), defaultRegion)
	bucket, err := c.S3.address(region)
	if err != nil {
		return nil, err
	}
	keys := c.keys()
	keys.Dir = o.Dir
	r := sinks.NewMetrics(o.Registerer, "object")
	s := &sink{
		path: t, conditional: c.ConditionalWrites, format: o.Format, log: o.Logger, turn: make(chan struct{}, 1), folders: map[string]*folder{},
		storage: &bucketClient{root: bucket, region: region, keys: keys},
		metrics: metrics{
			objects:  r.Counter("objects_total", "Objects written."),
			bytes:    r.Counter("bytes_total", "Bytes of the objects written, compressed."),
			repeated: r.Counter("repeated_total", "Events that the storage had already."),
			renamed:  r.Counter("renamed_total", "Objects written under a longer name, since the name was taken."),
		},
	}
	s.storage.client = post.New(post.Options{
		Key: "s3.endpoint", Host: bucket.Hostname(), Dir: o.Dir, MaySend: o.MaySend, TLS: c.S3.TLS, Timeout: c.Timeout.Std(), MaxAnswer: maxAnswer,
		Responses: r.CounterVec("responses_total", "Requests by the status of the answer; error if there was none.", "code"), Sign: s.storage.sign,
	})
	return s, r.Err()
}

// address is the URL of the bucket, which ends with a slash.
func (s *S3) address(region string) (*url.URL, error) {
	endpoint := s.Endpoint
	if endpoint == "" {
		endpoint = "https://s3." + region + "." + aws.Domain(region)
	}
	u, err := post.Address("s3.endpoint", endpoint, "")
	if err != nil {
		return nil, err
	}
	inPath := s.Endpoint != "" || strings.Contains(s.Bucket, ".")
	if s.PathStyle != nil {
		inPath = *s.PathStyle
	}
	if inPath {
		return u.JoinPath(s.Bucket, "/"), nil
	}
	u.Host = s.Bucket + "." + u.Host
	return u.JoinPath("/"), nil
}

// metrics are the sink's own; the registerer adds the sink's name.
type metrics struct {
	objects, bytes, repeated, renamed prometheus.Counter
}
