// Package simulation tests the pipeline from the API server to the sinks as a
// whole, on fake time, in memory.
//
// A history is a seed. It drives a fake API server, the real factory, pipeline, store and
// delivery, and sinks that fail, through about a hundred random steps: writes, lost
// connections, compactions, restarts and restores of the API server, short and slow pages, refused requests, outages, another
// cluster at the address, reloads beside writes, versions that are not served any more, relabelled and deleted
// namespaces, a full disk, starts without discovery, stops, and kills amid any of these and amid starts. A
// kill keeps of the disk what a power cut keeps. At the end every fault is over, and what every sink was given is compared
// with what the writer wrote, object path by object path: each event is possible,
// none is missing, the order is that of the writes, a change has one id, and what was added when
// the daemon was ready is reported as an addition. Where no history was lost, no gap reports a loss, and
// the consistency check, which a part of the histories runs all the time, repairs nothing.
//
// A failing history prints its seed and all that happened in it. WATCHERD_SIM_SEED runs one history and
// prints that as it happens, WATCHERD_SIM_WITHOUT leaves steps out ("reload,relabel"),
// WATCHERD_SIM_HISTORIES sets how many histories run and WATCHERD_SIM_FIRST where they
// begin. The steps of a seed are always the same; what the goroutines make of them may
// differ in order.
//
// The package has tests only.
package simulation
