"""Looking into a store, checking it, and making its files anew; most by path, without a broker."""
