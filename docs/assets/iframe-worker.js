// A browser starts no worker for a page that was opened from disk. There, the search runs in a hidden frame with a worker's manners.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.early = []; // what was said before the frame could hear
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      frame.srcdoc = "<!doctype html><title>Search</title>";
      frame.addEventListener("load", () => {
        this.inside = frame.contentWindow;
        this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = frame.contentDocument.createElement("script");
        script.src = address;
        script.addEventListener("load", () => {
          const early = this.early;
          this.early = null;
          for (const data of early) this.postMessage(data);
        });
        frame.contentDocument.head.append(script);
      }, { once: true });
      document.body.append(frame);
    }

    postMessage(data) {
      if (this.early) this.early.push(data);
      else this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
