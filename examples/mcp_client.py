"""A client of `holdfast mcp` in a page: start it, list its tools, let it work, and take everything back.

    python examples/mcp_client.py DIRECTORY

The messages are JSON-RPC 2.0, one object a line (https://modelcontextprotocol.io). A real client would rather use one
of the official SDKs; this one shows what goes over the line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


class Client:
    """One server, in a process of its own."""

    def __init__(self, directory: str) -> None:
        words = [sys.executable, "-m", "holdfast", "-w", directory, "mcp"]
        self._server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0
        about = {"name": "example", "version": "1"}
        self.request("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=about)
        self._send({"method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._server.stdin.flush()

    def request(self, method: str, **params: Any) -> Any:
        """Ask, print what is told meanwhile, and return the result."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        assert self._server.stdout is not None
        for line in self._server.stdout:
            message = json.loads(line)
            if message.get("method") == "notifications/progress":
                print("  …", message["params"].get("message"))
            elif message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                return message["result"]
        raise RuntimeError("the server has ended")

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Use a tool, and print what a model would read."""
        print(f"> {tool} {json.dumps(arguments)}")
        result = self.request("tools/call", name=tool, arguments=arguments, _meta={"progressToken": self._number})
        for content in result["content"]:
            print(content["text"])
        if result.get("isError"):
            raise RuntimeError(f"{tool} has failed")
        return result["structuredContent"]

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()


def main() -> None:
    """See the module."""
    client = Client(sys.argv[1])
    try:
        print("tools:", *(tool["name"] for tool in client.request("tools/list")["tools"]))
        client.call("write_file", path="notes/plan.txt", content="measure twice\n")
        client.call("edit_file", path="notes/plan.txt", old_text="twice", new_text="three times")
        client.call("execute_command", command="wc -w notes/plan.txt; rm -r notes")
        client.call("undo")
        client.call("read_file", path="notes/plan.txt")
        client.call("undo", count=2)
        client.call("list_directory")
    finally:
        client.close()


if __name__ == "__main__":
    main()
