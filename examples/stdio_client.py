"""A small frontend: runs one command, shows what it changed, asks a person where a safeguard asks, and offers to undo.

    python stdio_client.py COMMAND

It needs `holdfast` on the path, and of Python the standard library alone. docs/reference/stdio.md has the protocol.
"""

import json
import subprocess
import sys
import threading


class Holdfast:
    """Talks to a `holdfast stdio` of its own: one line of JSON a message, in either direction."""

    def __init__(self, on_event, command=("holdfast", "stdio")):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.on_event = on_event
        self.answers = {}  # request_id → what it was answered with
        self.is_over = False
        self.turn = threading.Condition()
        self.requests = 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        """Answers and events come in any order: an answer is told by its request_id."""
        for line in self.process.stdout:
            message = json.loads(line)
            if message["type"] == "response":
                with self.turn:
                    self.answers[message["request_id"]] = message
                    self.turn.notify_all()
            else:
                self.on_event(self, message["type"], message["payload"])
        with self.turn:
            self.is_over = True
            self.turn.notify_all()

    def send(self, kind, **payload):
        """Ask for something; its id. Works on the thread of `on_event`, too, which must not wait for an answer."""
        with self.turn:
            self.requests += 1
            identity = str(self.requests)
            line = json.dumps({"type": kind, "request_id": identity, "payload": payload})
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        return identity

    def ask(self, kind, **payload):
        """Ask for something, and wait for the answer."""
        identity = self.send(kind, **payload)
        with self.turn:
            self.turn.wait_for(lambda: identity in self.answers or self.is_over)
            answer = self.answers.pop(identity, None)
        if answer is None:
            raise SystemExit("holdfast has ended")
        if answer["status"] == "error":
            raise SystemExit(f"{answer['error']['message']} ({answer['error']['code']})")
        return answer["payload"]

    def close(self):
        """Closing its standard input ends it, and what runs, in order."""
        self.process.stdin.close()
        return self.process.wait()


def on_event(holdfast, kind, payload):
    """What is told without being asked."""
    if kind == "event.terminal_output":
        stream = sys.stdout if payload["stream"] == "stdout" else sys.stderr
        stream.write(payload["data"] if payload["data"] is not None else "(bytes that are no text)\n")
        stream.flush()
    elif kind == "event.safeguard_triggered":
        said = input(f"{payload['message']}. Allow it? [y/N] ")
        action = "allow" if said.strip().lower() == "y" else "deny"
        holdfast.send("safeguard.confirm", safeguard_id=payload["safeguard_id"], action=action)
    elif kind == "event.recovery":
        print(f"taken back, as it was cut short: {payload['paths']} changes")
    elif kind in ("event.warning", "event.error"):
        print(payload["message"], file=sys.stderr)


def main():
    holdfast = Holdfast(on_event)
    holdfast.ask("hello", versions=[1])
    holdfast.ask("session.start", guard=True)
    done = holdfast.ask("agent.execute", command=" ".join(sys.argv[1:]) or "true")
    print(f"exit code {done['exit_code']}, {done['changed']} paths changed" + (", denied" if done["denied"] else ""))
    if done["changed"] and not done["denied"] and input("Undo? [y/N] ").strip().lower() == "y":
        undone = holdfast.ask("undo.rollback", step_id=done["step_id"])
        print(f"taken back: step {', '.join(map(str, undone['steps']))}")
    sys.exit(holdfast.close())


if __name__ == "__main__":
    main()
