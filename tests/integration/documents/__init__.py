"""Every command and query of the documents, in one setting: brokers, a lake, what readers are asked to have."""
