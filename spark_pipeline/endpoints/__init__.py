"""Where records come from and go to, one module for each kind of system, behind one interface."""
