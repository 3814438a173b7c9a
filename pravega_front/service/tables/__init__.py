"""Key-value tables and the table segments behind them, in the node's database."""
