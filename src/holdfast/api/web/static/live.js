// One stream of events for all tabs. A browser opens six connections to a server and no more; with a stream in each of
// six tabs, it could ask for nothing else.
"use strict";
const streams = new Map();

class Stream {
  constructor(url) {
    this.url = url;
    this.ports = new Set();
    this.said = new Map();
    this.open();
  }

  open() {
    this.source = new EventSource(this.url);
    this.source.onopen = () => this.tell({ name: "open" });
    this.source.onerror = () => this.tell({ name: "error", state: this.source.readyState });
    for (const name of ["changed", "held", "experiments"]) {
      this.source.addEventListener(name, (event) => {
        this.said.set(name, event.data);
        this.tell({ name, data: event.data });
      });
    }
  }

  tell(message) {
    for (const port of this.ports) port.postMessage(message);
  }

  add(port) {
    this.ports.add(port);
    if (this.source.readyState === EventSource.CLOSED) this.open();
    if (this.source.readyState === EventSource.OPEN) port.postMessage({ name: "open" });
    for (const [name, data] of this.said) port.postMessage({ name, data });
  }

  remove(port) {
    this.ports.delete(port);
    if (this.ports.size) return;
    this.source.close();
    streams.delete(this.url);
  }
}

addEventListener("connect", (event) => {
  const port = event.ports[0];
  let stream = null;
  port.onmessage = ({ data: url }) => {
    if (stream) stream.remove(port);
    stream = null;
    if (!url) return;
    if (!streams.has(url)) streams.set(url, new Stream(url));
    stream = streams.get(url);
    stream.add(port);
  };
});
