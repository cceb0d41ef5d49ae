"""A fleet: registration of workers, shared quotas, ``up`` on one machine, and replicas of Ray Serve."""
