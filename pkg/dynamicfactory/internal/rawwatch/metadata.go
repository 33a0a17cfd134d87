package rawwatch

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/apiclient"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

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
		Path: s.path, Query: query, Accept: apiclient.AcceptMetadataList, Silence: pageTimeout, Timeout: pageTimeout,
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
	selector := "metadata.name=" + name // a name has no special characters of selectors
	if s.cfg.FieldSelector != "" {
		selector += "," + s.cfg.FieldSelector
	}
	query.Set("fieldSelector", selector)
	_, err := s.cfg.Client.RetryPage(ctx, apiclient.PageRequest{
		Path: apiclient.ResourcePath(s.cfg.GVR, namespace), Query: query, Accept: apiclient.AcceptMetadataList, Silence: apiclient.ProbeTimeout, Timeout: apiclient.ProbeTimeout,
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
