"""Model the claims and leases of one state partition, and check all states of the model."""
