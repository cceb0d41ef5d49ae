"""Models of a worker: residency (loading on demand, eviction of idle ones), and their directories (``bundles``)."""
