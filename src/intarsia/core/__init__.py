"""The nouns that stages share: backend, engine container, engine operator, signature, coverage, ledger."""
