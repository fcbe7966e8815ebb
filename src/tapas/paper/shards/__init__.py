"""The paper's distributed second pass: what the best n/m of each of m shards leave out."""
