"""Many coordinators on one state topic of a real cluster, and everything that can happen to one of them."""
