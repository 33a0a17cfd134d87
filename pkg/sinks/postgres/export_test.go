package postgres

// Definition is the SQL that makes a table.
var Definition = definition
