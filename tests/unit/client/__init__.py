"""The client, against a coordinator that misbehaves on demand, and against ours."""
