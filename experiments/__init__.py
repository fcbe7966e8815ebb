"""The paper's experiments, one study each, and what became of its claims."""
