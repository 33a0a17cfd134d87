// Package dynamicfactory makes shared informers for any resource, built-in or
// custom, and lets a program stop each of them on its own.
//
// A [Factory] satisfies dynamicinformer.DynamicSharedInformerFactory and does what
// client-go's own does: ForResource, Start, WaitForCacheSync and Shutdown mean the
// same, the informers are cache.SharedIndexInformer, and a program that uses one can
// use the other. What it adds:
//
//   - [Factory.Subscribe]: an informer for a [Key], which may have a namespace and
//     selectors of its own. Subscriptions with equal keys share one; the last one
//     that is closed stops it, joins its goroutines and frees its cache, and touches
//     nobody else's.
//   - [WithResync], [WithTransformFor], [WithIndexersFor], [WithTweakListOptionsFor]:
//     options of one resource, beside those of all.
//   - [WithCompactStore]: caches that hold compressed objects (package compact) in a
//     small fraction of the memory. Listers (package genericlister) return what they
//     always did, and handlers inflate what they need.
//   - [NewForConfig]: lists and watches that this package makes itself, reading raw
//     JSON, through every failure that a cluster has to offer. With [WithRaw] they
//     begin where a program's last run ended, slow down with their subscribers, and
//     say so when history was lost.
//   - [Resolver]: the names that kubectl takes, and wildcards, as a live list of
//     resources.
//
// # Guarantees
//
// What client-go says of informers holds: a handler sees the states of an object in
// order, though perhaps not every state, and no order between objects; delete and
// recreate of a name may look like one update with another uid.
//
// Nothing but the server's word makes an object go. A refusal, a resource that is
// not served (any more), a broken connection or a list with an object that cannot
// be named leaves the cache as it was, changes [Status], and is tried again.
//
// With NewForConfig, lists are consistent (never from a server's stale cache), a
// watch resumes where it ended after any interruption, and a list follows only when
// the server no longer has the history or its versions went backwards; what
// vanished meanwhile is then handed on as cache.DeletedFinalStateUnknown. A list of
// several pages may take as long as it needs: its watch begins with the first page.
// An object that cannot be read is left out, keeps its place in the cache if it has
// one, and is reported as a gap with its name.
//
// Shutdown and Close return when the goroutines have ended. Constructors start
// nothing.
//
// # Caveats
//
// NewForConfig asks for JSON whatever the config says of content types, and for
// lists paged at the version of the first page. It finds out about a cluster that
// was restored from a backup by asking for the resourceVersion of the namespaces
// (narrowed to kube-system) after a lost connection, once for all informers; the
// client should be allowed to list namespaces, and if it is not, each informer asks
// by a list of one of its own objects, as informers of events do anyway. Versions that
// are not numbers are compared for equality alone, and such rollbacks are not found;
// nor are those of another resource that has a storage of its own whose versions are
// behind the rest's.
//
// A source that has had no bookmarks and is quiet for two minutes lists the metadata
// of its resource once a minute, ten pages at most. If the list shows exactly the
// objects that the informer has, and the same watch brings nothing for another half a
// minute, the source resumes from the version of the list. What a stalled watch
// withholds therefore still comes, unless it left no trace in the list: an object that
// was made and deleted in between.
//
// In a factory made by NewForConfig, handlers set with SetWatchErrorHandler hear of
// lists that fail; watches are re-established without them, and Status tells.
package dynamicfactory
