"""What deploy/ ships, held to the tools and the processes that it is for."""
