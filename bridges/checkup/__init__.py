"""What is wrong with an installation, before a node starts or beside one that runs: ``anabranch doctor``."""
