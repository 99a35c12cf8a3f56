// What holds a pod's namespaces open.
module cachefleet.io/e2e/cluster/pause

go 1.24.0
