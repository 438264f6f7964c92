// Browsers refuse a Worker to a page opened from disk. The search asks for one, so there it gets an iframe that
// loads the same script and passes messages the same way.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      this.ready = new Promise((resolve) => (frame.onload = resolve));
      this.inner.document.write(
        "<script>postMessage = message => frameElement.worker.receive(message)<\/script>" +
          `<script src="${url}"><\/script>`
      );
      frame.worker = this;
      this.inner.document.close();
    }
    receive(data) {
      this.dispatchEvent(new MessageEvent("message", { data }));
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.inner.frameElement.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
