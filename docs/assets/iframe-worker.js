// Browsers start no Worker for a page opened from a file, and the search runs in one. On such
// pages a Worker is a hidden frame that loads the same script and passes the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      this.frame = frame;
      this.started = new Promise((resolve, reject) => {
        frame.onload = () => {
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inner.importScripts = (...urls) => Promise.all(urls.map((one) => load(inner, one)));
          load(inner, url).then(() => resolve(inner), reject);
        };
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.started.then((inner) => {
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };

  const load = (inner, url) =>
    new Promise((resolve, reject) => {
      const script = inner.document.createElement("script");
      script.src = new URL(url, location.href);
      script.onload = resolve;
      script.onerror = () => reject(new Error(`${url} cannot be loaded`));
      inner.document.body.append(script);
    });
}
