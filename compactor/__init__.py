"""The compactor: merges l1 into l2, so that reads stay few and writers never wait."""
