"""The paper's experiment on real data, redone on five sets that anybody can have."""
