"""The relay between a peer, a broker and a coordinator that are played."""
