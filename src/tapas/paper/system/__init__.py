"""The paper's Table 1 on a system like the paper's: workers, servers, 500,000 classes."""
