"""The rows that say what there is: one module for each table or subject, `catalog` their face."""
