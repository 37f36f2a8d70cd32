// Search runs in a worker, which browsers refuse to pages that are opened as files. There a hidden frame does its work.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => this.load(inside, each)), Promise.resolve())
      this.load(inside, url).then(() => {
        this.inside = inside
        this.waiting.forEach((data) => this.postMessage(data))
      })
    }
    load(inside, url) {
      return new Promise((resolve, reject) => {
        const script = inside.document.createElement("script")
        Object.assign(script, { src: url, onload: resolve, onerror: reject })
        inside.document.body.append(script)
      })
    }
    postMessage(data) {
      if (!this.inside) this.waiting.push(data)
      else this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
    }
    terminate() {}
  }
}
