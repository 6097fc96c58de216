"""Interfaces to the engine for frontends and agents: REST, STDIO, MCP and the web page."""
