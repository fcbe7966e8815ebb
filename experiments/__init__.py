"""The paper's experiments, one study each, and the verdicts on its claims."""
