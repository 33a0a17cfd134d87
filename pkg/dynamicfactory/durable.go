package dynamicfactory

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/progress"
	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// EditFunc appends an object's JSON to dst, edited, returns the extended slice, and sets by,
// which is empty, to who changed the object last, as rawjson.Editor.AppendChange does; if it does
// not, that is unknown. It retains neither raw nor by. The appended JSON must be one valid object. An error makes the object unreadable. Several goroutines may
// call it.
type EditFunc func(dst, raw []byte, by *rawjson.Change) ([]byte, error)

// DurableOptions configures a durable subscription. The zero value begins with a list.
type DurableOptions struct {
	// MetadataOnly requests metadata alone. The objects then have the kind
	// PartialObjectMetadata.
	MetadataOnly bool
	// Edit changes every object before anything else sees it; nil: the factory's
	// (WithEdit).
	Edit EditFunc
	// Codec encodes the objects, and belongs to the subscription; nil: a codec with
	// dictionaries that are never saved.
	Codec *compact.Codec
	// WarmStart returns the recorded state of the resource when the informer starts. The
	// informer begins with that state and resumes the watch from its version without a
	// list. WarmStart may return nil for no state, and may itself be nil.
	WarmStart func(context.Context) (*WarmStart, error)
	// OnGap reports lost history, after a list has made up for the loss as far as
	// possible and before the objects of that list; and each version of an object that
	// was skipped because it could not be read. It may be nil.
	//
	// The informer calls WarmStart, OnGap, OnRollback and Edit from its own goroutines, also before
	// SubscribeDurable returns, and waits for them: none may close the subscription.
	OnGap func(Gap)
	// OnRollback reports a rollback that the watch has found, with the version of then. The list that makes
	// up for it, and OnGap, may take long to come: a subscriber that ends before, and resumes, may find that the
	// server has passed its version. It may be nil.
	OnRollback func(Gap)
	// Window bounds the events forwarded and not acknowledged (DurableSubscription.Ack);
	// 0: no bound. A full window pauses reading, and TCP slows the server down; with
	// HTTP/2, up to 4 MiB that the server has sent wait in memory. A list is not bounded,
	// but the next one waits until it is acknowledged.
	Window int
}

// WarmStart is the recorded state of a resource: all objects at a version.
type WarmStart struct {
	ResourceVersion string
	Time            time.Time // of Quiet or else of the version, for the Gap if it cannot be resumed; may be zero
	Quiet           string    // of DurableSubscription.Quiet, with the ResourceVersion; may be empty
	Recorded        string    // the newest version of which anything is recorded, if it is later; may be empty
	Apart           bool      // WatchStatus.Apart of the earlier life
	Objects         []*compact.Object
	// Relist is for a program that has recorded only a part of a list at
	// ResourceVersion. The informer then ignores Objects, lists the resource at that
	// version, and watches from there. If that version has expired, the list is of the
	// present version, and OnGap reports a gap that begins at ResourceVersion. An empty
	// ResourceVersion requests a list of the present version, without a gap.
	Relist bool
	// Known returns, with Relist, the recorded state of a listed object. The informer begins
	// with the state of an object that cannot be read, and so reports later changes of it.
	// One that is later than that of a list of the present version shows a rollback. nil, or
	// a nil result, stands for no state.
	Known func(namespace, name string) *compact.Object
}

// Gap is a period of lost history: only the result of the changes in it is known.
type Gap = rawwatch.Gap

// Causes of gaps that the factory finds itself.
const (
	CauseExpired    = rawwatch.CauseExpired    // the server no longer had the history
	CauseRollback   = rawwatch.CauseRollback   // the server's versions went backwards and are reused
	CauseUnreadable = rawwatch.CauseUnreadable // an event or an object repeatedly could not be read
)

// List is a list of the resource within the sequence of positions.
type List = progress.List

// DurableSubscription is a subscription with an informer of its own, whose position a
// program records together with its objects, and resumes from after a restart.
//
// Positions order the notifications: cached objects are of type *compact.Object, and
// each carries one (compact.Object.Position).
type DurableSubscription struct {
	Subscription
}

// SubscribeDurable calls h for the objects of a key, as Subscribe does, from an
// informer of its own. The informer has no resync period, and holds *compact.Object
// regardless of WithCompactStore.
//
// Errors are those of Subscribe.
func (f *RESTFactory) SubscribeDurable(ctx context.Context, k Key, h cache.ResourceEventHandler, o DurableOptions) (*DurableSubscription, error) {
	if err := f.admits(ctx, &k, h); err != nil {
		return nil, err
	}
	i := f.newInformer(k, &o)
	i.owners = 1
	s := &DurableSubscription{Subscription{factory: f.Factory, informer: i, closed: make(chan struct{})}}
	if err := s.open(ctx, h); err != nil {
		return nil, err
	}
	return s, nil
}

// Ack acknowledges all notifications up to a position as durable with the subscriber,
// and opens the window.
func (s *DurableSubscription) Ack(position uint64) { s.informer.source.Ack(position) }

// Checkpoint returns the newest resourceVersion that is complete once all notifications
// up to a position are durable. A subscriber that records it together with its objects
// can resume there without loss. It is older than the last event, because more events
// of that version may follow. It is empty while no version is complete.
//
// The version of a list is complete at the position of its last object, in the order of
// the callbacks. Deletions that the list revealed come before that object. After a list
// without objects the next event completes it, or NextList.
func (s *DurableSubscription) Checkpoint(position uint64) string {
	return s.informer.source.Checkpoint(position)
}

// Known returns the time of the version that Quiet returns for a position, or of that of Checkpoint if it returns
// none. A subscriber records it with them (WarmStart.Time): nothing that happened until then is missing. It is zero if it is not known.
// It may be long ago where the watch or the subscriber is behind.
func (s *DurableSubscription) Known(position uint64) time.Time {
	return s.informer.source.Known(position)
}

// Quiet returns, for a resource without bookmarks that has been quiet for minutes, a version
// later than that of Checkpoint: the list at that version had exactly the objects of all
// notifications up to the position. A subscriber that records both versions resumes from
// Checkpoint's if the API server still has it, and else from this one; then only events of
// objects that were created and deleted in between can be missing. Otherwise it is empty.
func (s *DurableSubscription) Quiet(position uint64) string { return s.informer.source.Quiet(position) }

// NextList returns the first list that ends after a position, and false if there is
// none. The next object without a position, and the next deletion found by comparison,
// belong to that list. withObjects skips empty lists: an object cannot belong to one. A
// subscriber that has recorded a part of the list can begin again with its version
// (WarmStart.Relist).
//
// No object carries the end of an empty list. A subscriber whose record is empty once
// everything up to a position is durable agrees with an empty list that ends at the
// following position and is still the last notification (List.Last). That end is then
// valid for Checkpoint and Ack.
func (s *DurableSubscription) NextList(position uint64, withObjects bool) (List, bool) {
	return s.informer.source.NextList(position, withObjects)
}

// MetadataPage describes a page of ListMetadata: the resourceVersion of the page, and
// the token of the next page, "" after the last.
type MetadataPage = rawwatch.MetadataPage

// ListMetadata reads one page of the resource from the API server and calls visit with
// the metadata of each object. An empty token requests the first page, and the token of
// a page the following one. All pages have one version until it expires on the server;
// later pages then have a newer one. The informer is not involved: a subscriber compares
// its own record with the pages. The metadata is valid during the call. An error of visit
// ends the page. A page that breaks off is read again from its beginning, after a call
// of again, which is required.
//
// The error is ErrStopped after the end of the informer.
func (s *DurableSubscription) ListMetadata(ctx context.Context, token string, again func(), visit func(*rawjson.Meta) error) (MetadataPage, error) {
	return s.informer.source.ListMetadata(ctx, token, again, visit)
}

// GetMetadata calls visit with the metadata of one object of the API server. It does
// not call visit if the object does not exist.
func (s *DurableSubscription) GetMetadata(ctx context.Context, namespace, name string, visit func(*rawjson.Meta)) error {
	return s.informer.source.GetMetadata(ctx, namespace, name, visit)
}

// Skipped returns the version of an object that was skipped last because it could not be read, for a
// subscriber that compares its own record with ListMetadata. ok is false if none is known.
func (s *DurableSubscription) Skipped(namespace, name string) (resourceVersion string, ok bool) {
	return s.informer.source.Skipped(namespace, name)
}

// Watch is the status of the informer's lists and watches.
func (s *DurableSubscription) Watch() WatchStatus { return s.informer.source.Status() }

// Relist makes the informer list its resource again, for a subscriber that found changes
// missing from the watch. The handler receives the differences, and
// DurableOptions.OnGap a gap with that cause.
func (s *DurableSubscription) Relist(cause string) { s.informer.source.Relist(cause) }

// warmStart adapts o.WarmStart to the source; nil without one.
func (o *DurableOptions) warmStart() func(context.Context) (*rawwatch.WarmStart, error) {
	if o.WarmStart == nil {
		return nil
	}
	return func(ctx context.Context) (*rawwatch.WarmStart, error) {
		s, err := o.WarmStart(ctx)
		if s == nil || err != nil {
			return nil, err
		}
		return &rawwatch.WarmStart{ResourceVersion: s.ResourceVersion, Time: s.Time, Quiet: s.Quiet, Recorded: s.Recorded, Apart: s.Apart, Relist: s.Relist, Objects: s.at, Known: s.known}, nil
	}
}

// known returns the result of Known as a runtime.Object, which is nil without a state.
func (s *WarmStart) known(namespace, name string) runtime.Object {
	if s.Known == nil {
		return nil
	}
	if o := s.Known(namespace, name); o != nil {
		return o
	}
	return nil
}

// at returns the objects as a list at a position, which the last object carries.
func (s *WarmStart) at(position uint64) []runtime.Object {
	list := make([]runtime.Object, len(s.Objects))
	for i, o := range s.Objects {
		if i == len(s.Objects)-1 {
			o = o.WithPosition(position)
		}
		list[i] = o
	}
	return list
}
