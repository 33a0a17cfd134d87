// Package dynamicfactory makes shared informers for any resource, built-in or custom,
// each of which a program can stop on its own.
//
// A [Factory] implements dynamicinformer.DynamicSharedInformerFactory with client-go's
// semantics: ForResource, Start, WaitForCacheSync and Shutdown have the same meaning, the
// informers are cache.SharedIndexInformer, and either factory can replace the other. It
// adds:
//
//   - [Factory.Subscribe]: an informer for a [Key], which may have its own namespace and
//     selectors. Subscriptions with equal keys share an informer. Closing the last one
//     stops the informer, joins its goroutines, frees its cache, and leaves the others
//     alone.
//   - [WithResync], [WithTransformFor], [WithIndexersFor], [WithTweakListOptionsFor]:
//     options of one resource, beside those of all resources.
//   - [WithCompactStore]: caches of compressed objects (package compact) in a small
//     fraction of the memory. Listers (package genericlister) return inflated objects, and
//     handlers inflate what they need.
//   - [Resolver]: the resource names and wildcards that kubectl accepts, resolved to a
//     live list of resources.
//
// A [RESTFactory], which [NewRESTFactory] makes, is a Factory that sends its own list and
// watch requests and reads raw JSON. It survives the failures of an API server, and adds:
//
//   - [RESTFactory.SubscribeDurable]: a subscription that resumes after a restart where
//     the program's record ends, applies back-pressure, and reports lost history.
//   - [WithEdit]: edits of the raw JSON.
//
// # Guarantees
//
// Those of client-go's informers: a handler receives the states of an object in order,
// but not necessarily every state. There is no order between objects. Deletion and
// recreation of a name may appear as one update with another uid.
//
// Only the server's response deletes an object. A rejected request, a resource that is not
// served, a broken connection or a list with an object without a name leaves the cache
// unchanged, changes [Status], and is retried.
//
// With NewForConfig, lists are consistent (never from a server's stale cache), and a watch
// resumes where it ended after any interruption. A new list follows only when the server
// no longer has the history or its versions went backwards. Objects that vanished in
// between are then reported as cache.DeletedFinalStateUnknown. A list of several pages has
// no time limit: its watch begins with the first page. An unreadable object is skipped,
// keeps its cached state if there is one, and is reported as a gap with its name.
//
// Shutdown and Close return when the goroutines have ended. Constructors start nothing.
//
// # Caveats
//
// NewForConfig requests JSON regardless of the content types in the config, and lists in
// pages at the version of the first page. It detects a cluster that was restored from a
// backup by the resourceVersion of the namespaces (narrowed to kube-system), which it
// requests after a lost connection, once for all informers. The client needs permission to
// list namespaces for this. Without it each informer lists one of its own objects instead,
// as informers of events always do. Versions that are not numbers are only compared for
// equality, and such rollbacks are not detected. Those of a resource with a storage of its
// own whose versions are behind the others are detected by its bookmarks or its next list. A
// backup that is restored at a higher version shows by its history, which has expired, and
// objects that are older than before, or had been deleted.
//
// A source without bookmarks that is quiet for two minutes lists the metadata of its
// resource once a minute, ten pages at most. If the list has exactly the cached objects,
// and the same watch stays quiet for another half a minute, the source resumes from the
// version of the list. A stalled watch thus still delivers withheld events, except those
// of an object that was both created and deleted in between.
//
// In a RESTFactory, handlers set with SetWatchErrorHandler receive the errors of lists
// only. Watches are re-established without them; Status has their errors.
//
// The package is larger than others: factories, subscriptions and the resolver are one public
// interface. The requests and the streams behind it are packages below internal.
package dynamicfactory
