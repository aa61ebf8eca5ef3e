"""An issuer of JSON Web Tokens: a private key, its public key set and signed tokens."""

import json
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

NOW_S = 1_700_000_000


class TokenIssuer:
    """An issuer of tokens. `keys` is the text of its JSON Web Key Set."""

    def __init__(self, key_id: str = "key-1") -> None:
        self.key_id = key_id
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self.keys = json.dumps({"keys": [{**public, "kid": key_id, "alg": "ES256", "use": "sig"}]})

    def write_keys(self, file: Path) -> str:
        """Write the key set to a file; return its path."""
        file.write_text(self.keys)
        return str(file)

    def token(self, subject: str | None = "alice", *, key_id: str | None = "", **claims: Any) -> str:
        """Return a token valid from NOW_S for one hour; `claims` override claims, None omits one."""
        whole = {"sub": subject, "iat": NOW_S, "exp": NOW_S + 3600, **claims}
        headers = {} if key_id is None else {"kid": key_id or self.key_id}
        present = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(present, self._key, algorithm="ES256", headers=headers)
