package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/body"
	"github.com/watcherd/watcherd/internal/delivery"
	"github.com/watcherd/watcherd/internal/route"
	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/nats/natsclient/natsconfig"
)

// Compile makes the state that c asks for; the State may share its strings. The error is a
// *config.Errors. It is complete where c is valid, as config.Load returns it.
func Compile(c *config.Config) (*State, error) {
	k := &compiler{config: c}
	s := &State{
		Cluster: c.Cluster.Name, Feed: c.Feed.Name,
		KubeAPI: KubeAPI{QPS: c.KubeAPI.QPS, Burst: c.KubeAPI.Burst},
		Store: Store{
			Path:              c.Store.Path,
			MaxBytes:          c.Store.MaxBytes.Value(),
			RetentionMaxBytes: c.Store.Retention.MaxBytes.Value(),
			RetentionMaxAge:   max(c.Store.Retention.MaxAge, 1), // 0 keeps nothing; to the store it is no bound
			MinFree:           c.Store.MinFree.Value(),

			DeadLetterMaxBytes: c.Store.DeadLetters.MaxBytes.Value(),
			DeadLetterMaxAge:   c.Store.DeadLetters.MaxAge,
		},
		Admin:            compileAdmin(c.Admin),
		ConsistencyCheck: ConsistencyCheck{Enabled: c.ConsistencyCheck.Enabled, Interval: c.ConsistencyCheck.Interval},
	}
	if key := c.Store.RedactionKey; key != nil {
		s.Store.RedactionKey = sinks.Secret(*key)
	}
	if c.Store.Journal != nil {
		s.Store.Journal = k.journal(c.Store.Journal)
	}
	for i := range c.Watches {
		s.Watches = append(s.Watches, k.watch(i))
	}
	k.overlaps(s.Watches)
	for i := range c.Sinks {
		s.Sinks = append(s.Sinks, k.sink(i))
	}
	s.Routes = k.routes(s.Sinks)
	s.Router = k.router(s.Routes)
	k.needs(s)
	if err := config.NewErrors(k.faults...); err != nil {
		return nil, err
	}
	s.Warnings = k.warnings(s)
	s.Hash, s.Masked = hashOf(s), c.Masked()
	return s, nil
}

func (k *compiler) journal(c *config.Journal) *Journal {
	secret := func(s *config.Secret) sinks.Secret {
		if s == nil {
			return sinks.Secret{}
		}
		return sinks.Secret(*s)
	}
	n := &c.NATS
	j := &Journal{
		NATS: natsconfig.Config{
			URLs: n.URLs, User: n.User, Password: secret(n.Password), Token: secret(n.Token),
			CredentialsFile: n.CredentialsFile, NkeySeedFile: n.NkeySeedFile, TLS: sinks.TLS(n.TLS), Timeout: cmp.Or(n.Timeout, 5*time.Second),
		},
		Stream: c.Stream, Replicas: cmp.Or(c.Replicas, 3), MaxBytes: cmp.Or(c.MaxBytes.Value(), 8<<30),
		TakeOverAfter: cmp.Or(c.TakeOverAfter, 5*time.Second), EncryptionKey: secret(&c.EncryptionKey),
	}
	for i := range c.OldEncryptionKeys {
		j.OldEncryptionKeys = append(j.OldEncryptionKeys, secret(&c.OldEncryptionKeys[i]))
	}
	k.faultsBelow("store.journal.nats", j.NATS.Validate())
	return j
}

// compiler collects the faults of one configuration.
type compiler struct {
	config *config.Config
	faults []*config.Error
}

func (k *compiler) fault(path, format string, args ...any) {
	k.faults = append(k.faults, k.config.ErrorAt(path, format, args...))
}

// faultsBelow reports the faults that packages route, redact and selector found, whose
// paths are relative to path. A value is reported once.
func (k *compiler) faultsBelow(path string, err error) {
	for _, e := range joined(err) {
		spec, ok := errors.AsType[*route.SpecError](e)
		if f, other := errors.AsType[*field.Error](e); other {
			spec, ok = &route.SpecError{Path: f.Field, Msg: f.Detail}, true
		}
		if !ok {
			k.fault(path, "%v", e)
			continue
		}
		at := path + "." + spec.Path
		if slices.ContainsFunc(k.faults, func(f *config.Error) bool { return f.Path == at }) {
			continue
		}
		if spec.Line > 0 {
			k.faults = append(k.faults, k.config.ErrorWithin(at, spec.Line, spec.Column, "%s", spec.Msg))
			continue
		}
		k.fault(at, "%s", spec.Msg)
	}
}

func joined(err error) []error {
	if err == nil {
		return nil
	}
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		return list.Unwrap()
	}
	return []error{err}
}

func compileAdmin(a config.Admin) Admin {
	out := Admin{Listen: a.Listen, Probes: a.Probes}
	if a.Auth != nil {
		out.ReadTokenFile, out.CommandTokenFile = a.Auth.ReadTokenFile, a.Auth.CommandTokenFile
		out.ReadNames, out.CommandNames = a.Auth.ReadNames, a.Auth.CommandNames
	}
	if a.TLS != nil {
		out.CertFile, out.KeyFile, out.ClientCAFile = a.TLS.CertFile, a.TLS.KeyFile, a.TLS.ClientCAFile
	}
	return out
}

func item(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }

func (k *compiler) sink(i int) Sink {
	c := &k.config.Sinks[i]
	s := Sink{
		Name:        c.Name,
		Kind:        c.Kind,
		Format:      sinks.Format(c.Format),
		BatchMode:   c.Batch.MaxEvents != nil && *c.Batch.MaxEvents > 1,
		Retry:       delivery.Retry{Initial: c.Retry.Initial, Max: c.Retry.Max, PoisonAttempts: c.Retry.PoisonAttempts},
		OnOversize:  delivery.Oversize(c.OnOversize),
		StartFrom:   c.StartFrom,
		Heartbeat:   c.Heartbeat,
		Fingerprint: fingerprint(c.Raw, c, c.Kind, c.Settings),
	}
	if c.RateLimit != nil {
		s.Rate = delivery.Rate(*c.RateLimit)
	}
	if c.Body != "" {
		compiled, faults := body.Compile(c.Body, c.ContentType)
		for _, f := range faults {
			k.faults = append(k.faults, k.config.ErrorWithin(item("sinks", i)+".body", f.Line, f.Column, "%s", f.Msg))
		}
		s.Body = compiled
	}
	settings, ok := c.Settings.(sinks.Config)
	if !ok {
		k.fault(item("sinks", i), "unknown kind of sink %q", c.Kind)
		return s
	}
	if takes, ok := settings.(sinks.HeartbeatTaker); c.Heartbeat > 0 && (!ok || !takes.TakesHeartbeats()) {
		k.fault(item("sinks", i)+".heartbeat", "the sink takes no heartbeats: nats, webhook, and kafka with mode history do")
	}
	if _, ok := settings.(sinks.Sequential); ok && c.Concurrency != nil && *c.Concurrency > 1 {
		k.fault(item("sinks", i)+".concurrency", "must be 1: the batches of several lanes would overlap, and events could be delivered twice after a crash")
	}
	s.Config = settings
	s.Delivery = settingsOf(settings.Defaults(), c)
	return s
}

// settingsOf lays the block's settings over the kind's defaults.
func settingsOf(d sinks.Delivery, c *config.Sink) sinks.Delivery {
	if n := c.Batch.MaxEvents; n != nil {
		d.MaxEvents = *n
	}
	if q := c.Batch.MaxBytes; q != nil {
		d.MaxBytes = int(q.Value())
	}
	if w := c.Batch.MaxWait; w != nil {
		d.MaxWait = *w
	}
	if n := c.Concurrency; n != nil {
		d.Concurrency = *n
	}
	return d
}
