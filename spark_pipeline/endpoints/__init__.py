"""Endpoints: the sources and targets of records, one module for each kind of system, behind one interface."""
