// Search from pages that are opened as files. Browsers refuse workers there, so the search runs in a hidden frame instead,
// with the same two ends: postMessage and "message" events.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.waiting = [];
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const inside = this.frame.contentWindow;
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    inside.importScripts = (...urls) => urls.reduce((done, one) => done.then(() => load(inside, one)), Promise.resolve());
    load(inside, url).then(() => {
      this.ready = true;
      this.waiting.splice(0).forEach((data) => this.postMessage(data));
    });
  }

  postMessage(data) {
    if (this.ready) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    else this.waiting.push(data);
  }

  terminate() {
    this.frame.remove();
  }
}

function load(inside, url) {
  return new Promise((done, failed) => {
    const script = inside.document.createElement("script");
    script.src = new URL(url, document.baseURI);
    script.onload = done;
    script.onerror = failed;
    inside.document.body.append(script);
  });
}

if (location.protocol === "file:") window.Worker = FrameWorker;
