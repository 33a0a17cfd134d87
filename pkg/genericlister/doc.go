// Package genericlister reads the caches of informers: a cache.GenericLister over
// any indexer, and typed views of it.
//
// What a lister returns belongs to the caller. Changing it never changes the cache,
// unlike with client-go's listers, which hand out the cached objects themselves.
// From a cache of compact objects (package compact) a lister inflates what it
// returns, some microseconds an object; selectors are evaluated before that.
//
// A lister is as current as its informer's cache, and safe for concurrent use.
package genericlister
