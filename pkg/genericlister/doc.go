// Package genericlister reads the caches of informers: a cache.GenericLister over
// any indexer, and typed views of it.
//
// The returned objects belong to the caller. A change of them never changes the cache,
// unlike with client-go's listers, which return the cached objects themselves. From a cache
// of compact objects (package compact) a lister returns inflated objects, at some
// microseconds each; it evaluates selectors before that.
//
// A lister is as current as its informer's cache, and safe for concurrent use.
package genericlister
