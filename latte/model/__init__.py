"""What a user declares: neurons, ensembles and their connections, mappings."""
